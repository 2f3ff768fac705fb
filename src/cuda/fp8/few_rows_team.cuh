// The roles of a team's CTA (parts/team.cuh).
#pragma once

#include "cuda/fp8/block_loader.cuh"
#include "cuda/fp8/few_rows_warpgroup.cuh"
#include "cuda/parts/team_segments.cuh"

namespace flashlatent::fp8::few_rows {

template <class Config>
class TeamWarpgroup : public Warpgroup<Config> {
 public:
  using Base = Warpgroup<Config>;
  using Base::Base;

  /// All of this CTA's share of the team's segment, which has begun, to writing the result.
  __device__ __forceinline__ void run(const TeamWork& work) {
    this->attend(work);
    const Exchange exchange(shared_);
    exchange.open();
    this->publish_sum();
    if (this->is_poisoned()) [[unlikely]]
      this->spread_poison();
    this->meet();  // P has been read, too
    send(exchange);
    const parts::TeamUnit<SharedMemory<Config>> unit;
    const auto find = [&](int n, int column) { return shared_.row_place[n].at(column); };
    if (work.team.shares > 1) {
      const parts::UnitPlace written = unit.written(work.team.share, work.team.shares);
      unit.merge(shared_, args_, work.team, find(written.n, written.column), find, exchange);
    } else {
      unit.finish(args_, find(unit.row(), unit.column()), exchange);
    }
  }

 private:
  using Exchange = parts::Exchange<SharedMemory<Config>>;
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
                                                const parts::DecodeArguments& args,
                                                const parts::PartPlace<Config::kTeam>& place) {
  TeamWarpgroup<Config> warpgroup(shared, args);
  const bool known = parts::known_ahead<Config::kTeam>(args);
  if (known) warpgroup.prepare(place.only_tile(args));
  parts::wait_for_launch_before();
  if (known) warpgroup.begin(true);  // before the length is known
  const parts::WorkPositionOf<TeamWork> position(shared.segments);
  const TeamWork& work = position.get();
  if (!work.is_known) {
    warpgroup.prepare(work.tile);
    warpgroup.begin(work.blocks() > 0);
  }
  warpgroup.run(work);
}

template <class Config>
__device__ __forceinline__ void load_in_team(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                             const CUtensorMap* map,
                                             const parts::PartPlace<Config::kTeam>& place) {
  using Segments = parts::Segments<Config::kTeam>;
  const int thread = threadIdx.x - Config::kComputeThreads;
  if (thread >= LoaderOf<SharedMemory<Config>>::kThreads) return parts::wait_for_launch_before();
  const bool known = parts::known_ahead<Config::kTeam>(args);
  parts::RowTile tile;
  if (known) tile = place.only_tile(args);
  parts::wait_for_launch_before();
  const Segments segments(args, place);
  const schedule::Segment segment = segments.only();
  if (!known) tile = segments.tile_of(segment);
  const parts::BlockRange range = parts::block_range(args.cache, segment, tile);
  load_range(shared, args, map, range, thread, [&] {
    if (thread == 0) {
      parts::WorkPositionOf<TeamWork>(shared.segments)
          .put({{segment, tile}, segments.sharing(segment), known});
    }
  });
}

}  // namespace flashlatent::fp8::few_rows
