// The results of several teams that share a request (schedule::kShared), merged without a launch: the owner
// of a unit leaves what its team has of it in the workspace, and takes a ticket; who gets the last one adds
// up all teams' in their order, and writes. Each unit has tickets of its own: nobody waits for anybody.
#pragma once

#include "cuda/parts/team.cuh"
#include "cuda/parts/team_room.h"
#include "cuda/parts/ticket.cuh"

namespace flashlatent::parts {

/// One team's part of one unit, in the workspace. Those of the teams that share a request lie side by side.
template <class Config>
struct UnitPartial {
  float4 values[128];  // as in Exchange: a thread's four
  RowStatistics rows[Config::kRows];
};

/// One unit, by 128 threads.
template <class Config>
class TeamMerge {
 public:
  /// Teams `first` to first + shares - 1 share the request. `lane`: which of its row tiles.
  __device__ __forceinline__ TeamMerge(const DecodeArguments& args, int request, int first, int shares,
                                       int lane, UnitPlace place)
      : partials_(reinterpret_cast<UnitPartial<Config>*>(args.partial.out) +
                  (first * args.geometry.lanes + lane * shares) * Config::kUnits + place.unit * shares),
        ticket_(reinterpret_cast<Ticket*>(reinterpret_cast<UnitPartial<Config>*>(args.partial.out) +
                                          args.geometry.parts * args.geometry.lanes * Config::kUnits) +
                (request * args.geometry.lanes + lane) * Config::kUnits + place.unit),
        shares_(shares),
        place_(place),
        thread_(threadIdx.x % 128) {}

  __device__ __forceinline__ void store(int share, const float (&x)[4], RowStatistics row) const {
    UnitPartial<Config>& partial = partials_[share];
    partial.values[thread_] = make_float4(x[0], x[1], x[2], x[3]);
    if (place_.begins_row()) partial.rows[place_.n] = row;
  }

  /// By one thread, after all have stored.
  __device__ __forceinline__ bool is_last() const { return take_ticket(ticket_, shares_); }

  /// All teams' together in their order, unnormalised, and the thread's row.
  __device__ __forceinline__ RowStatistics add_up(float (&x)[4]) const {
    RowStatistics all;
    add<true>(0, x, all);
    if constexpr (Config::kTeamsAtOnce * Config::kTeam < kMostTeamCtas) {
#pragma unroll 1
      for (int i = Config::kTeamsAtOnce; i < shares_; i += Config::kTeamsAtOnce) add<false>(i, x, all);
    }
    return all;
  }

 private:
  /// Teams `first` and on, kTeamsAtOnce in one trip to memory, to those before them, if there are any.
  template <bool kFirst>
  __device__ __forceinline__ void add(int first, float (&x)[4], RowStatistics& all) const {
    constexpr int kAtOnce = Config::kTeamsAtOnce;
    // The first row's and values' addresses, all others being so much further. How they come about is hidden:
    // else each is multiplied out, 500 instructions that run once, at 3 clocks each.
    const float2* rows_at = reinterpret_cast<const float2*>(&partials_[first].rows[place_.n]);
    const float4* values_at = &partials_[first].values[thread_];
    asm("" : "+l"(rows_at), "+l"(values_at));
    constexpr int kStep = sizeof(UnitPartial<Config>);
    float2 rows[kAtOnce] = {};
    float4 units[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= shares_) continue;
      rows[i] = __ldcg(rows_at + i * (kStep / sizeof(float2)));
      units[i] = __ldcg(values_at + i * (kStep / sizeof(float4)));
    }
    float max = kFirst ? -INFINITY : all.max;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= shares_) break;
      max = fmaxf(max, rows[i].x);
    }
    const float base = finite_or_zero(max);
    if constexpr (kFirst) {
      x[0] = x[1] = x[2] = x[3] = 0;
      all.sum = 0;
    } else {
      const float shrinks = exp2_fast(all.max - base);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] *= shrinks;
      all.sum *= shrinks;
    }
    all.max = max;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= shares_) break;
      const float weight = exp2_fast(rows[i].x - base);
      all.sum += rows[i].y * weight;
      add_weighted(x, units[i], weight);
    }
  }

  // As the workspace is reckoned on the host (dense/teams.cc).
  static_assert(Config::kUnits <= kMostUnits);
  static_assert(Config::kUnits * sizeof(UnitPartial<Config>) ==
                Config::kRows * (Config::kVDim * sizeof(float) + Config::kUnits * sizeof(RowStatistics)));

  UnitPartial<Config>* const partials_;
  Ticket* const ticket_;
  const int shares_;
  const UnitPlace place_;
  const int thread_;
};

}  // namespace flashlatent::parts
