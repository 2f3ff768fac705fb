// The roles of a team's CTA (parts/team.cuh).
#pragma once

#include "cuda/direct/loader.cuh"
#include "cuda/direct/warpgroup.cuh"
#include "cuda/parts/team_segments.cuh"

namespace flashlatent::direct {

template <class Config>
class TeamWarpgroup : public Warpgroup<Config> {
 public:
  using Base = Warpgroup<Config>;
  using Base::Base;

  /// All of this CTA's share of a segment that has begun, to writing the result.
  __device__ __forceinline__ void run(const TeamWork& work) {
    this->attend(work);
    Exchange exchange(shared_, work.exchanges);
    exchange.open();
    this->publish_sum();
    if (this->is_poisoned()) [[unlikely]]
      this->spread_poison();
    this->meet();  // P has been read, too
    send(exchange);
    const parts::TeamUnit<SharedMemory<Config>> unit;
    unit.finish(shared_, args_, work.segment, work, shared_.row_place[unit.row()].at(unit.column()),
                exchange);
  }

  /// Before the next segment takes the place of this one's rows, and P that of what was received.
  __device__ __forceinline__ void meet_after() { this->meet(); }

 private:
  using Exchange = parts::Exchange<SharedMemory<Config>>;
  using Base::args_;
  using Base::me_;
  using Base::o_;
  using Base::shared_;

  __device__ __forceinline__ void send(const Exchange& exchange) const {
    exchange.send_statistics([&](int n) { return this->statistics(n); });
#pragma unroll
    for (int i = 0; i < Config::kUnits / 2; ++i) {
      const int at = i % 4 / 2 * 4 + i % 2, chunk = i / 4 * 2;
      exchange.route(me_ * (Config::kUnits / 2) + i)
          .send(this->thread() * 16,
                make_float4(o_[chunk][at], o_[chunk][at + 2], o_[chunk + 1][at], o_[chunk + 1][at + 2]));
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
  for (parts::WorkPositionOf<TeamWork> position(shared.work); !position.get().is_end(); position.next()) {
    const TeamWork& work = position.get();
    if (!work.is_known) {
      warpgroup.prepare(work.tile);
      warpgroup.begin(work.blocks() > 0);
    }
    warpgroup.run(work);
    if (work.is_only) break;
    warpgroup.meet_after();
  }
}

/// Tells the computing warpgroups of segments.
template <class Config>
class Teller {
 public:
  __device__ __forceinline__ Teller(SharedMemory<Config>& shared, bool tells)
      : position_(shared.work), tells_(tells) {}

  __device__ __forceinline__ void tell(const schedule::Segment& segment, const parts::RowTile& tile,
                                       const parts::Segments<Config::kTeam>& segments, bool is_only = false,
                                       bool is_known = false) {
    if (!tells_) return;
    position_.put({{segment, tile},
                   exchanges_,
                   segments.share(),
                   segments.shares(),
                   segments.lane(),
                   is_only,
                   is_known});
    ++exchanges_;
  }

 private:
  parts::WorkPositionOf<TeamWork> position_;
  const bool tells_;
  int exchanges_ = 0;
};

template <class Config>
__device__ __forceinline__ void load_in_team(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                             const parts::PartPlace<Config::kTeam>& place) {
  using Segments = parts::Segments<Config::kTeam>;
  struct NoPipe {
  } pipe;
  const int thread = threadIdx.x - Config::kComputeThreads;
  Loader<SharedMemory<Config>> loader(args.cache, shared, thread);
  Teller<Config> teller(shared, thread == 0);
  // One segment needs no walk, nor what that keeps in memory.
  if (args.geometry.whole != schedule::kCutLine && args.query.begins == nullptr) {
    const bool known = parts::known_ahead<Config::kTeam>(args);
    parts::RowTile tile;
    if (known) tile = place.only_tile(args);
    parts::wait_for_launch_before();
    Segments segments(args, place);
    const schedule::Segment segment = segments.only();
    if (!known) tile = segments.tile_of(segment);
    const parts::BlockRange range = parts::block_range(args.cache, segment, tile);
    loader.look_ahead(range);
    teller.tell(segment, tile, segments, true, known);
    loader.load(pipe, range, [] {});
    return;
  }
  parts::wait_for_launch_before();
  Segments segments(args, place);
  schedule::Segment segment, next;
  parts::keep_in_memory(segments);
  parts::keep_in_memory(segment);
  parts::keep_in_memory(next);
  bool more = segments.next(segment);
  if (more) loader.look_ahead(parts::block_range(args.cache, segment, segments.tile_of(segment)));
  for (; more; segment = next) {
    teller.tell(segment, segments.tile_of(segment), segments);
    loader.load(pipe, parts::block_range(args.cache, segment, segments.tile_of(segment)), [&] {
      more = segments.next(next);
      if (more) loader.look_ahead(parts::block_range(args.cache, next, segments.tile_of(next)));
    });
  }
  segment.request = -1;
  teller.tell(segment, {}, segments);
}

}  // namespace flashlatent::direct
