// A computing warp of a team's CTA, and the team's loading role. What follows from shapes is computed before
// the previous launch is done.
#pragma once

#include "cuda/sm90/kernels/mla_16/attention.cuh"
#include "cuda/sm90/load/kv_loader.cuh"
#include "cuda/sm90/merge/packed_row.cuh"
#include "cuda/sm90/merge/team_unit.cuh"
#include "cuda/sm90/walk/team_segments.cuh"

namespace flashlatent::mla_16 {

template <class Config>
class TeamWarp : Attention<Config> {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ TeamWarp(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : Base(shared, args) {}

  /// Computes the segment's addresses. For a part by shape, if it is not ragged, this is done before the
  /// previous launch is done.
  __device__ __forceinline__ void prepare(const sm90::RowTile& tile, int share, int shares) {
    tile_ = tile;
    query_at_ = query_.find(args_.query, tile, lane_);
    const sm90::UnitPlace written = unit_.written(share, shares);
    to_ = sm90::RowPlace<Element>::find(args_, tile, written.n, written.column);
  }
  /// Call after prepare() if the segment has blocks: starts loading Q.
  __device__ __forceinline__ void begin() { query_.load(query_at_, half_); }

  /// Computes this CTA's share of the team's segment, from Q, which begin() loads, to writing the result.
  __device__ __forceinline__ void run(const schedule::Segment& segment,
                                      const sm90::Segments<Config::kTeam>& segments) {
    const sm90::Work work{segment, tile_};
    this->start(work);
    const int blocks = work.blocks();
    if (blocks > 0) this->arrange_query();
    for (int left = blocks; left > 0; --left) {
      this->score();
      this->attend(work);
    }
    const Exchange exchange(shared_);
    exchange.open();
    publish_statistics();
    send_columns(exchange);
    this->meet();
    send_statistics(exchange);
    if (segments.shares() > 1) {
      const sm90::SharingTeam team = segments.sharing(segment);
      const auto find = [&](int n, int column) {
        return sm90::RowPlace<Element>::find(args_, tile_, n, column);
      };
      for_each_unit(
          [&](const Unit& unit, const auto& to) { unit.merge(shared_, args_, team, to, find, exchange); });
    } else {
      for_each_unit([&](const Unit& unit, const auto& to) { unit.finish(args_, to, exchange); });
    }
  }

 private:
  using Base = Attention<Config>;
  using Exchange = sm90::Exchange<SharedMemory<Config>>;
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

  using Unit = sm90::TeamUnit<SharedMemory<Config>>;

  /// Calls `visit(unit, to)` for each unit that this thread adds up.
  template <class Visit>
  __device__ __forceinline__ void for_each_unit(Visit visit) const {
    visit(unit_, to_);
#pragma unroll
    for (int turn = 1; turn < Exchange::kTurns; ++turn) {  // the next unit has the same row
      const Unit unit(turn);
      visit(unit, to_.at(unit.column() - unit_.column()));
    }
  }

  __device__ __forceinline__ void publish_statistics() {
    this->put(shared_.warp_sum, {sm90::quad_sum(sum_.low), sm90::quad_sum(sum_.high)});
    if (me_ != 0 || lane_ % 4 != 0) return;
    shared_.team.row_max[lane_ / 4] = max_.low;
    shared_.team.row_max[lane_ / 4 + 8] = max_.high;
  }

  /// Sends the statistics that all warps have written to shared memory.
  __device__ __forceinline__ void send_statistics(const Exchange& exchange) const {
    exchange.send_statistics([&](int n) {
      float sum = 0;
#pragma unroll
      for (float of_warp : shared_.warp_sum[n]) sum += of_warp;
      return sm90::RowStatistics{shared_.team.row_max[n], sum};
    });
  }

  __device__ __forceinline__ void send_columns(const Exchange& exchange) const {
    using Row = sm90::PackedRow<Element, Config::kWarpColumns / 2>;
    const int warp = me_ % Config::kWarpsAChunk;
    const sm90::RowPair bounds = Row::lane_bounds(o_);
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

  Unit unit_;
  sm90::RowTile tile_;
  sm90::RowPlace<Element> to_;
  typename Query<Config>::Place query_at_;
};

template <class Config>
__device__ __forceinline__ void compute_in_team(SharedMemory<Config>& shared,
                                                const sm90::DecodeArguments& args,
                                                const sm90::PartPlace<Config::kTeam>& place) {
  TeamWarp<Config> warp(shared, args);
  const bool known = sm90::known_ahead<Config::kTeam>(args);
  if (known) warp.prepare(place.only_tile(args), place.share(), place.shares(args.geometry));
  sm90::wait_for_launch_before();
  if (known) warp.begin();
  const sm90::Segments<Config::kTeam> segments = sm90::find_segments(args, place, known);
  const schedule::Segment segment = segments.only();
  if (!known) {
    warp.prepare(segments.tile_of(segment), segments.share(), segments.shares());
    if (segment.block_end > segment.block_begin) warp.begin();
  }
  warp.run(segment, segments);
}

template <class Config>
__device__ __forceinline__ void load_in_team(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                             const CUtensorMap& kv_map,
                                             const sm90::PartPlace<Config::kTeam>& place) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  const bool known = sm90::known_ahead<Config::kTeam>(args);
  sm90::RowTile tile;
  if (known) tile = place.only_tile(args);
  sm90::wait_for_launch_before();
  if (thread >= Loader::threads(args.cache)) return;
  const sm90::Segments<Config::kTeam> segments = sm90::find_segments(args, place, known);
  const schedule::Segment segment = segments.only();
  if (!known) tile = segments.tile_of(segment);
  Loader loader(args.cache, kv_map, thread, shared.loader);
  RingPosition<Config> ring(shared);
  const sm90::BlockRange range = sm90::block_range(args.cache, segment, tile);
  loader.look_ahead(range);
  loader.load(ring, range, [] {});
}

}  // namespace flashlatent::mla_16
