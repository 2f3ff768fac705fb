// The results of several teams that share a request (schedule::kShared), merged without a launch: the owner
// of a unit leaves what its team has of it in the workspace, and takes a ticket; who gets the last one adds
// up all teams' in their order, and writes. Each unit has tickets of its own: nobody waits for anybody.
#pragma once

#include "cuda/mma16/instances.h"
#include "cuda/mma16/team.cuh"
#include "cuda/parts/ticket.cuh"

namespace flashlatent::mma16 {

/// One team's part of one unit, in the workspace. Those of the teams that share a request lie side by side.
template <class Config>
struct UnitPartial {
  float4 values[128];  // as in Exchange: a thread's four
  RowStatistics rows[kRows];
};

/// One unit, by 128 threads.
template <class Config>
class TeamMerge {
 public:
  /// Teams `first` to first + shares - 1 share the request. `lane`: which of its row tiles.
  __device__ __forceinline__ TeamMerge(const parts::DecodeArguments& args, int request, int first, int shares,
                                       int lane, UnitPlace place)
      : partials_(reinterpret_cast<UnitPartial<Config>*>(args.partial.out) +
                  (first * args.geometry.lanes + lane * shares) * Config::kUnits + place.unit * shares),
        ticket_(reinterpret_cast<parts::Ticket*>(reinterpret_cast<UnitPartial<Config>*>(args.partial.out) +
                                                 args.geometry.parts * args.geometry.lanes * Config::kUnits) +
                (request * args.geometry.lanes + lane) * Config::kUnits + place.unit),
        shares_(shares),
        n_(place.n),
        thread_(threadIdx.x % 128) {}

  __device__ __forceinline__ void store(int share, const float (&x)[4], RowStatistics row) const {
    UnitPartial<Config>& partial = partials_[share];
    partial.values[thread_] = make_float4(x[0], x[1], x[2], x[3]);
    if (thread_ < 32 && thread_ % 4 == 0) partial.rows[n_] = row;
  }

  /// By one thread, after all have stored.
  __device__ __forceinline__ bool is_last() const { return parts::take_ticket(ticket_, shares_); }

  /// All teams' together in their order, unnormalised, and the thread's row, in one trip to memory.
  __device__ __forceinline__ RowStatistics add_up(float (&x)[4]) const {
    float2 rows[kMostTeams];
    float4 units[kMostTeams];
#pragma unroll
    for (int i = 0; i < kMostTeams; ++i) {
      rows[i] = make_float2(-INFINITY, 0.0F);
      units[i] = make_float4(0, 0, 0, 0);
      if (i >= shares_) continue;
      rows[i] = __ldcg(reinterpret_cast<const float2*>(&partials_[i].rows[n_]));
      units[i] = __ldcg(&partials_[i].values[thread_]);
    }
    RowStatistics all{-INFINITY, 0};
#pragma unroll
    for (const float2& row : rows) all.max = fmaxf(all.max, row.x);
    const float base = parts::finite_or_zero(all.max);
    x[0] = x[1] = x[2] = x[3] = 0;
#pragma unroll
    for (int i = 0; i < kMostTeams; ++i) {
      if (i >= shares_) break;
      const float weight = parts::exp2_fast(rows[i].x - base);
      all.sum += rows[i].y * weight;
      Exchange<Config>::add_weighted(x, units[i], weight);
    }
    return all;
  }

 private:
  // As the workspace is reckoned on the host (team_launch.cu).
  static_assert(Config::kUnits <= kMostUnits);
  static_assert(Config::kUnits * sizeof(UnitPartial<Config>) ==
                kRows * (Config::kVDim * sizeof(float) + Config::kUnits * sizeof(RowStatistics)));

  UnitPartial<Config>* const partials_;
  parts::Ticket* const ticket_;
  const int shares_, n_, thread_;
};

}  // namespace flashlatent::mma16
