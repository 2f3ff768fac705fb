// One of the computing warps of a team's CTA, and the team's loading role. What shapes tell is worked out
// before the launch before this one is done.
#pragma once

#include "cuda/mma16/team_merge.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/kv_loader.cuh"

namespace flashlatent::mma16 {

// + which: the named barrier of a unit's 128 threads.
inline constexpr int kUnit = 6;

template <class Config>
class TeamWarp : Attention<Config> {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ TeamWarp(SharedMemory<Config>& shared, const parts::DecodeArguments& args)
      : Base(shared, args), place_(Exchange<Config>::own_place()) {}

  /// Before the launch before this one is done: what the only segment of a part by shape, not ragged, needs
  /// of addresses.
  __device__ __forceinline__ void prepare(const parts::RowTile& tile) {
    tile_ = tile;
    query_at_ = query_.find(args_.query, tile, lane_);
    find_places();
  }
  /// Afterwards: its Q is under way.
  __device__ __forceinline__ void begin() { query_.load(query_at_, half_); }

  /// Both, of a segment with blocks or without.
  __device__ __forceinline__ void begin(const parts::RowTile& tile, bool has_blocks) {
    prepare(tile);
    if (has_blocks) begin();
  }

  /// All of this CTA's share of one segment of `segments`, which has been begun, from Q to writing the
  /// result.
  __device__ __forceinline__ void run(const schedule::Segment& segment,
                                      const parts::Segments<Config::kTeam>& segments) {
    const parts::Work work{segment, tile_};
    this->start(work);
    const int blocks = work.blocks();
    Exchange<Config> exchange(shared_, exchanges_, segments.team_blocks());
    if (blocks > 0) this->arrange_query();
    for (int left = blocks; left > 0; --left) {
      this->score();
      this->attend(work);
    }
    finish(segment, blocks > 0, segments, exchange);
    if (segments.team_blocks() == 0) return;
    ++exchanges_;
    this->meet();
  }

 private:
  using Base = Attention<Config>;
  using Base::args_;
  using Base::half_;
  using Base::lane_;
  using Base::max_;
  using Base::me_;
  using Base::o_;
  using Base::query_;
  using Base::shared_;
  using Base::sum_;

  /// Where results will go, worked out while memory is waited for: divisions take long.
  __device__ __forceinline__ void find_places() {
    out_ = nullptr;
    lse_ = nullptr;
    head_ = 0;
    if (place_.unit < 0 || place_.n >= tile_.rows) return;
    const parts::OutputArguments& output = args_.output;
    const int token = tile_.token(args_.query, place_.n);
    head_ = tile_.head(args_.query, place_.n);
    out_ = static_cast<Element*>(output.out) + tile_.origin * output.batch_stride +
           token * output.token_stride + head_ * output.head_stride + place_.column;
    // The owner of the first columns writes it.
    if (place_.column == 0) lse_ = parts::lse_place(output, tile_, head_, token);
  }

  /// Sends the CTA's share to the owners, and writes what it owns.
  __device__ __forceinline__ void finish(const schedule::Segment& segment, bool has_blocks,
                                         const parts::Segments<Config::kTeam>& segments,
                                         Exchange<Config>& exchange) {
    exchange.open();
    if (has_blocks) {
      publish_statistics();
      this->meet();
      exchange.send(o_, me_, lane_);
    }
    if (place_.unit < 0) return;
    exchange.receive();
    float x[4];
    RowStatistics row = exchange.add_up(x, place_.n);
    bool partial = segment.slot >= 0;
    if (partial && args_.geometry.whole == schedule::kShared) {
      if (!merge_teams(x, row, segment, segments)) return;
      partial = false;
    }
    const parts::RowScale scale = parts::finish_row(row.max, row.sum);
    if (out_ == nullptr) return;
    if (!partial) {
      float factor = scale.factor;
      if (args_.output.sink != nullptr) {
        factor *= parts::sink_factor(scale.lse, __ldg(args_.output.sink + head_));
      }
      if (lse_ != nullptr) *lse_ = parts::final_lse(args_.output, scale.lse);
      *reinterpret_cast<std::uint32_t*>(out_) = parts::pack<Element>(x[0] * factor, x[1] * factor);
      *reinterpret_cast<std::uint32_t*>(out_ + 8) = parts::pack<Element>(x[2] * factor, x[3] * factor);
      return;
    }
    const std::int64_t at =
        (static_cast<std::int64_t>(segment.slot) * args_.geometry.lanes + segments.lane()) * kRows + place_.n;
    if (lse_ != nullptr) args_.partial.lse[at] = scale.lse;
    float* out = args_.partial.out + at * Config::kVDim + place_.column;
    *reinterpret_cast<float2*>(out) = make_float2(x[0] * scale.factor, x[1] * scale.factor);
    *reinterpret_cast<float2*>(out + 8) = make_float2(x[2] * scale.factor, x[3] * scale.factor);
  }

  __device__ __forceinline__ void publish_statistics() {
    this->put(shared_.warp_sum, {parts::quad_sum(sum_.low), parts::quad_sum(sum_.high)});
    if (me_ != 0 || lane_ % 4 != 0) return;
    shared_.team.row_max[lane_ / 4] = max_.low;
    shared_.team.row_max[lane_ / 4 + 8] = max_.high;
  }

  /// `x` and `row` are this team's part; the last of those that share the request gets all of it, and true.
  __device__ __forceinline__ bool merge_teams(float (&x)[4], RowStatistics& row,
                                              const schedule::Segment& segment,
                                              const parts::Segments<Config::kTeam>& segments) {
    const TeamMerge<Config> merge(args_, segment.request, segment.slot - segments.share(), segments.shares(),
                                  segments.lane(), place_);
    const int slot = threadIdx.x / 128;
    merge.store(segments.share(), x, row);
    ptx::named_sync(kUnit + slot, 128);  // all have
    bool& is_last = shared_.team.is_last[slot];
    if (threadIdx.x % 128 == 0) is_last = merge.is_last();
    ptx::named_sync(kUnit + slot, 128);
    if (is_last) row = merge.add_up(x);
    return is_last;
  }

  const UnitPlace place_;
  parts::RowTile tile_;
  typename Query<Config>::Place query_at_;
  Element* out_;                 // null: not a live row
  float* lse_;                   // if this thread writes it
  int head_;                     // of its row
  std::uint32_t exchanges_ = 0;  // segments with blocks so far
};

/// Has a part one segment, that can be known before the launch before this one is done?
template <int kTeam>
__device__ __forceinline__ bool known_ahead(const parts::DecodeArguments& args) {
  return parts::PartPlace<kTeam>::by_shape(args.geometry) && args.query.begins == nullptr;
}

__device__ __forceinline__ void wait_for_launch_before() {
  cudaGridDependencySynchronize();            // of what it may still write
  cudaTriggerProgrammaticLaunchCompletion();  // the combine step may take its place in the queue
}

template <class Config>
__device__ __forceinline__ void compute_in_team(SharedMemory<Config>& shared,
                                                const parts::DecodeArguments& args,
                                                const parts::PartPlace<Config::kTeam>& place) {
  TeamWarp<Config> warp(shared, args);
  const bool known = known_ahead<Config::kTeam>(args);
  if (known) warp.prepare(place.only_tile(args));
  wait_for_launch_before();
  if (known) warp.begin();
  parts::Segments<Config::kTeam> segments(args, place);
  schedule::Segment segment;
  if (known) segment = segments.only();
  while (known || segments.next(segment)) {
    if (!known) warp.begin(segments.tile_of(segment), segment.block_end > segment.block_begin);
    warp.run(segment, segments);
    if (known) break;
  }
}

template <class Config>
__device__ __forceinline__ void load_in_team(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                             const CUtensorMap& kv_map,
                                             const parts::PartPlace<Config::kTeam>& place) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  const bool known = known_ahead<Config::kTeam>(args);
  parts::RowTile tile;
  if (known) tile = place.only_tile(args);
  wait_for_launch_before();
  if (thread >= Loader::kThreads) return;
  parts::Segments<Config::kTeam> segments(args, place);
  Loader loader(args.cache, kv_map, thread, shared.loader);
  RingPosition<Config> ring(shared);
  schedule::Segment segment;
  bool more = known;
  auto find = [&](parts::BlockRange& range) {
    more = segments.next(segment);
    if (more) range = parts::block_range(args.cache, segment, segments.tile_of(segment));
  };
  parts::BlockRange range, next;
  if (known) {
    range = parts::block_range(args.cache, segments.only(), tile);
  } else {
    find(range);
  }
  if (more) loader.look_ahead(range);
  while (more) {
    loader.load(ring, range, [&] {
      more = false;
      if (known) return;
      find(next);
      if (more) loader.look_ahead(next);
    });
    range = next;
  }
}

}  // namespace flashlatent::mma16
