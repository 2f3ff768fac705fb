// One of the computing warps of a team's CTA, and the team's loading role. What shapes tell is worked out
// before the launch before this one is done.
#pragma once

#include "cuda/mma16/attention.cuh"
#include "cuda/parts/kv_loader.cuh"
#include "cuda/parts/packed_row.cuh"
#include "cuda/parts/team_segments.cuh"
#include "cuda/parts/team_unit.cuh"

namespace flashlatent::mma16 {

template <class Config>
class TeamWarp : Attention<Config> {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ TeamWarp(SharedMemory<Config>& shared, const parts::DecodeArguments& args)
      : Base(shared, args) {}

  /// Before the launch before this one is done: what the only segment of a part by shape, not ragged, needs
  /// of addresses.
  __device__ __forceinline__ void prepare(const parts::RowTile& tile) {
    tile_ = tile;
    query_at_ = query_.find(args_.query, tile, lane_);
    to_ = parts::RowPlace<Element>::find(args_, tile, unit_.row(), unit_.column());
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
    Exchange exchange(shared_, exchanges_);
    if (blocks > 0) this->arrange_query();
    for (int left = blocks; left > 0; --left) {
      this->score();
      this->attend(work);
    }
    exchange.open();
    publish_statistics();
    send_columns(exchange);
    this->meet();
    send_statistics(exchange);
    unit_.finish(shared_, args_, segment, segments, to_, exchange);
#pragma unroll
    for (int turn = 1; turn < Exchange::kTurns; ++turn) {  // of the same row
      const parts::TeamUnit<SharedMemory<Config>> unit(turn);
      unit.finish(shared_, args_, segment, segments, to_.at(unit.column() - unit_.column()), exchange);
    }
    ++exchanges_;
    this->meet();
  }

 private:
  using Base = Attention<Config>;
  using Exchange = parts::Exchange<SharedMemory<Config>>;
  using SentUnit = typename Config::SentUnit;
  using Base::args_;
  using Base::half_;
  using Base::lane_;
  using Base::max_;
  using Base::me_;
  using Base::o_;
  using Base::query_;
  using Base::shared_;
  using Base::sum_;

  __device__ __forceinline__ void publish_statistics() {
    this->put(shared_.warp_sum, {parts::quad_sum(sum_.low), parts::quad_sum(sum_.high)});
    if (me_ != 0 || lane_ % 4 != 0) return;
    shared_.team.row_max[lane_ / 4] = max_.low;
    shared_.team.row_max[lane_ / 4 + 8] = max_.high;
  }

  /// Which are in shared memory, all warps'.
  __device__ __forceinline__ void send_statistics(const Exchange& exchange) const {
    exchange.send_statistics([&](int n) {
      float sum = 0;
#pragma unroll
      for (float of_warp : shared_.warp_sum[n]) sum += of_warp;
      return parts::RowStatistics{shared_.team.row_max[n], sum};
    });
  }

  __device__ __forceinline__ void send_columns(const Exchange& exchange) const {
    using Row = parts::PackedRow<Element, Config::kWarpColumns / 2>;
    const int warp = me_ % Config::kWarpsAChunk;
    const parts::RowPair bounds = Row::lane_bounds(o_);
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int unit = me_ / Config::kWarpsAChunk * 2 + eight;
      const Row row(o_, eight, eight ? bounds.high : bounds.low);
      const auto route = exchange.route(unit);
#pragma unroll
      for (int i = 0; i < Row::kPackets; ++i) {
        route.send(((warp * Row::kPackets + i) * 32 + lane_) * 16, row.packets[i]);
      }
      if constexpr (Config::kPacksSums) {
        route.send(offsetof(SentUnit, scale) + (warp * 32 + lane_) * 4, __float_as_uint(row.unit));
      }
    }
  }

  parts::TeamUnit<SharedMemory<Config>> unit_;
  parts::RowTile tile_;
  parts::RowPlace<Element> to_;
  typename Query<Config>::Place query_at_;
  std::uint32_t exchanges_ = 0;  // so far
};

template <class Config>
__device__ __forceinline__ void compute_in_team(SharedMemory<Config>& shared,
                                                const parts::DecodeArguments& args,
                                                const parts::PartPlace<Config::kTeam>& place) {
  TeamWarp<Config> warp(shared, args);
  const bool known = parts::known_ahead<Config::kTeam>(args);
  if (known) warp.prepare(place.only_tile(args));
  parts::wait_for_launch_before();
  if (known) warp.begin();
  parts::Segments<Config::kTeam> segments = parts::find_segments(args, place, known);
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
  const bool known = parts::known_ahead<Config::kTeam>(args);
  parts::RowTile tile;
  if (known) tile = place.only_tile(args);
  parts::wait_for_launch_before();
  if (thread >= Loader::threads(args.cache)) return;
  parts::Segments<Config::kTeam> segments = parts::find_segments(args, place, known);
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
