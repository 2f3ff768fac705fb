// What a computing thread of a team adds up of its CTA's units, and writes.
#pragma once

#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/team_merge.cuh"

namespace flashlatent::parts {

// + which: the named barrier of a unit's 128 threads.
inline constexpr int kUnitBarrier = 6;

/// Where a row's results go, from a column on.
template <class Element>
struct RowPlace {
  Element* out = nullptr;  // null: not a live row
  float* lse = nullptr;    // of column 0, with whose values it is written
  int head = 0;

  __device__ __forceinline__ static RowPlace find(const DecodeArguments& args, const RowTile& tile, int n,
                                                  int column = 0) {
    RowPlace place;
    if (n >= tile.rows) return place;
    const OutputArguments& output = args.output;
    const int token = tile.token(args.query, n);
    place.head = tile.head(args.query, n);
    place.out = static_cast<Element*>(output.out) + tile.origin * output.batch_stride +
                token * output.token_stride + place.head * output.head_stride + column;
    if (column == 0) place.lse = lse_place(output, tile, place.head, token);
    return place;
  }

  /// So many columns on.
  __device__ __forceinline__ RowPlace at(int column) const {
    return {out == nullptr ? nullptr : out + column, column == 0 ? lse : nullptr, head};
  }
};

template <class Shared>
class TeamUnit {
 public:
  using Config = typename Shared::Config;
  using Element = typename Config::Element;

  __device__ __forceinline__ explicit TeamUnit(int turn = 0)
      : turn_(turn), place_(Exchange<Shared>::own_place(turn)) {}

  /// Of this thread's values.
  __device__ __forceinline__ int row() const { return place_.n; }
  __device__ __forceinline__ int column() const { return place_.column; }

  /// Adds up what the CTAs have sent, and writes it. `segments`, which gave the segment, has the numbers of
  /// this part among those that share the request, and its lane.
  template <class Segments>
  __device__ __forceinline__ void finish(Shared& shared, const DecodeArguments& args,
                                         const schedule::Segment& segment, const Segments& segments,
                                         const RowPlace<Element>& to, Exchange<Shared>& exchange) const {
    if (place_.unit < 0) return;
    exchange.receive();
    float x[4];
    RowStatistics row = exchange.add_up(x, place_.n, turn_);
    bool partial = segment.slot >= 0;
    if (partial && args.geometry.whole == schedule::kShared) {
      if (!merge_teams(shared, args, x, row, segment, segments)) return;
      partial = false;
    }
    const RowScale scale = finish_row(row.max, row.sum);
    if (to.out == nullptr) return;
    float factor = scale.factor / Config::kLargestP;
    if (!partial) {
      if (args.output.sink != nullptr) factor *= sink_factor(scale.lse, __ldg(args.output.sink + to.head));
      if (to.lse != nullptr) *to.lse = final_lse(args.output.empty_lse, scale.lse);
      *reinterpret_cast<std::uint32_t*>(to.out) = pack<Element>(x[0] * factor, x[1] * factor);
      *reinterpret_cast<std::uint32_t*>(to.out + Config::kPairApart) =
          pack<Element>(x[2] * factor, x[3] * factor);
      return;
    }
    const std::int64_t at =
        (static_cast<std::int64_t>(segment.slot) * args.geometry.lanes + segments.lane()) * Config::kRows +
        place_.n;
    if (to.lse != nullptr) args.partial.lse[at] = scale.lse;
    float* out = args.partial.out + at * Config::kVDim + place_.column;
    *reinterpret_cast<float2*>(out) = make_float2(x[0] * factor, x[1] * factor);
    *reinterpret_cast<float2*>(out + Config::kPairApart) = make_float2(x[2] * factor, x[3] * factor);
  }

 private:
  /// `x` and `row` are this team's part; the last of those that share the request gets all of it, and true.
  template <class Segments>
  __device__ __forceinline__ bool merge_teams(Shared& shared, const DecodeArguments& args, float (&x)[4],
                                              RowStatistics& row, const schedule::Segment& segment,
                                              const Segments& segments) const {
    const TeamMerge<Config> merge(args, segment.request, segment.slot - segments.share(), segments.shares(),
                                  segments.lane(), place_);
    const int slot = Exchange<Shared>::slot_of(turn_);
    merge.store(segments.share(), x, row);
    ptx::named_sync(kUnitBarrier + slot % 2, 128);  // all have
    bool& is_last = shared.team.is_last[slot];
    if (threadIdx.x % 128 == 0) is_last = merge.is_last();
    ptx::named_sync(kUnitBarrier + slot % 2, 128);
    if (is_last) row = merge.add_up(x);
    return is_last;
  }

  const int turn_;
  const UnitPlace place_;
};

}  // namespace flashlatent::parts
