// The roles of a team's CTA (merge/team.cuh).
#pragma once

#include "cuda/sm90/kernels/fp8/block_loader.cuh"
#include "cuda/sm90/kernels/fp8/few_rows_warpgroup.cuh"
#include "cuda/sm90/walk/team_segments.cuh"

namespace flashlatent::fp8::few_rows {

template <class Config>
class TeamWarpgroup : public Warpgroup<Config> {
 public:
  using Base = Warpgroup<Config>;
  using Base::Base;

  /// Computes this CTA's share of the team's segment, which has begun, and writes the result.
  __device__ __forceinline__ void run(const TeamWork& work) {
    this->attend(work);
    const Exchange exchange(shared_);
    exchange.open();
    this->publish_sum();
    if (this->is_poisoned()) [[unlikely]]
      this->spread_poison();
    this->meet();  // P has also been read
    send(exchange);
    const sm90::TeamUnit<SharedMemory<Config>> unit;
    const auto find = [&](int n, int column) { return shared_.row_place[n].at(column); };
    if (work.team.shares > 1) {
      const sm90::UnitPlace written = unit.written(work.team.share, work.team.shares);
      unit.merge(shared_, args_, work.team, find(written.n, written.column), find, exchange);
    } else {
      unit.finish(args_, find(unit.row(), unit.column()), exchange);
    }
  }

 private:
  using Exchange = sm90::Exchange<SharedMemory<Config>>;
  using Base::args_;
  using Base::me_;
  using Base::o_;
  using Base::shared_;

  __device__ __forceinline__ void send(const Exchange& exchange) const {
    exchange.send_statistics([&](int n) { return this->statistics(n); });
    const float scale = Config::kE4m3 ? cache_scale(args_) : 1;
    auto scaled = [&](float x) { return Config::kE4m3 ? x * scale : x; };
#pragma unroll
    for (int i = 0; i < Config::kUnits / 2; ++i) {
      const int at = i % 4 / 2 * 4 + i % 2, chunk = i / 4 * 2;
      exchange.route(me_ * (Config::kUnits / 2) + i)
          .send(this->thread() * 16, make_float4(scaled(o_[chunk][at]), scaled(o_[chunk][at + 2]),
                                                 scaled(o_[chunk + 1][at]), scaled(o_[chunk + 1][at + 2])));
    }
  }
};

template <class Config>
__device__ __forceinline__ void compute_in_team(SharedMemory<Config>& shared,
                                                const sm90::DecodeArguments& args,
                                                const sm90::PartPlace<Config::kTeam>& place) {
  TeamWarpgroup<Config> warpgroup(shared, args);
  const bool known = sm90::known_ahead<Config::kTeam>(args);
  if (known) warpgroup.prepare(place.only_tile(args));
  sm90::wait_for_launch_before();
  if (known) warpgroup.begin(true);  // before the length is known
  const sm90::WorkPositionOf<TeamWork> position(shared.segments);
  const TeamWork& work = position.get();
  if (!work.is_known) {
    warpgroup.prepare(work.tile);
    warpgroup.begin(work.blocks() > 0);
  }
  warpgroup.run(work);
}

template <class Config>
__device__ __forceinline__ void load_in_team(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                             const CUtensorMap* map,
                                             const sm90::PartPlace<Config::kTeam>& place) {
  using Segments = sm90::Segments<Config::kTeam>;
  const int thread = threadIdx.x - Config::kComputeThreads;
  if (thread >= LoaderOf<SharedMemory<Config>>::kThreads) return sm90::wait_for_launch_before();
  const bool known = sm90::known_ahead<Config::kTeam>(args);
  sm90::RowTile tile;
  if (known) tile = place.only_tile(args);
  sm90::wait_for_launch_before();
  const Segments segments(args, place);
  const schedule::Segment segment = segments.only();
  if (!known) tile = segments.tile_of(segment);
  const sm90::BlockRange range = sm90::block_range(args.cache, segment, tile);
  load_range(shared, args, map, range, thread, [&] {
    if (thread == 0) {
      sm90::WorkPositionOf<TeamWork>(shared.segments)
          .put({{segment, tile}, segments.sharing(segment), known});
    }
  });
}

}  // namespace flashlatent::fp8::few_rows
