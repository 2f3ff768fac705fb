// What a computing thread of a team does with its CTA's units: adds them up and writes them.
#pragma once

#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/merge/team_merge.cuh"

namespace flashlatent::sm90 {

/// Where a row's results go, from a column on.
template <class Element>
struct RowPlace {
  Element* out = nullptr;  // null: the row is not live
  float* lse = nullptr;    // of column 0, with whose values the lse is written; else null
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

  /// The place `column` columns further on.
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

  /// The values that this thread writes. If several teams share the request, these are not the values that it
  /// adds up first.
  __device__ __forceinline__ UnitPlace written(int share, int shares) const {
    const int four = TeamMerge<Config>::written(share, shares), unit = max(place_.unit, 0);
    return {place_.unit, Config::unit_row(unit, four), Config::unit_column(unit, four)};
  }
  __device__ __forceinline__ int row() const { return place_.n; }
  __device__ __forceinline__ int column() const { return place_.column; }

  /// Adds up what the CTAs have sent, merges it with the other teams' results of the request, and writes a
  /// slice of the sum. `team`: this team. `to`: the place of written(); `find(n, column)` finds other places.
  template <class Find>
  __device__ __forceinline__ void merge(Shared& shared, const DecodeArguments& args, const SharingTeam& team,
                                        const RowPlace<Element>& to, Find find,
                                        const Exchange<Shared>& exchange) const {
    if (place_.unit < 0) return;
    TeamMerge<Config> merge(args, team, place_);
    exchange.receive();
    float x[4];
    const RowStatistics row = exchange.add_up(x, place_.n, turn_);
    const int slot = Exchange<Shared>::slot_of(turn_);
    merge.run(x, row, shared.team.unmerged[slot],
              [&](bool own, int four, const float(&all)[4], RowStatistics all_row) {
                RowPlace<Element> there = to;
                if (!own) [[unlikely]] {
                  there = find(Config::unit_row(place_.unit, four), Config::unit_column(place_.unit, four));
                }
                write(args, all, all_row, there);
              });
  }

  /// Adds up what the CTAs have sent, and writes it.
  __device__ __forceinline__ void finish(const DecodeArguments& args, const RowPlace<Element>& to,
                                         const Exchange<Shared>& exchange) const {
    if (place_.unit < 0) return;
    exchange.receive();
    float x[4];
    const RowStatistics row = exchange.add_up(x, place_.n, turn_);
    write(args, x, row, to);
  }

 private:
  /// Writes the final result.
  __device__ __forceinline__ static void write(const DecodeArguments& args, const float (&x)[4],
                                               RowStatistics row, const RowPlace<Element>& to) {
    const RowScale scale = finish_row(row.max, row.sum);
    if (to.out == nullptr) return;
    float factor = scale.factor / Config::kLargestP;
    if (args.output.sink != nullptr) factor *= sink_factor(scale.lse, __ldg(args.output.sink + to.head));
    if (to.lse != nullptr) *to.lse = final_lse(args.output.empty_lse, scale.lse);
    *reinterpret_cast<std::uint32_t*>(to.out) = pack<Element>(x[0] * factor, x[1] * factor);
    *reinterpret_cast<std::uint32_t*>(to.out + Config::kPairApart) =
        pack<Element>(x[2] * factor, x[3] * factor);
  }

  const int turn_;
  const UnitPlace place_;
};

}  // namespace flashlatent::sm90
