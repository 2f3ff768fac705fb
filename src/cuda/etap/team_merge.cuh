// The results of several teams that share a request (schedule::kShared), merged without a launch: the owner
// of a unit leaves what its team has of it in the workspace, and takes a ticket; who gets the last one adds
// up all teams' in their order, and writes. Each unit has tickets of its own (parts/ticket.cuh).
#pragma once

#include "cuda/etap/instances.h"
#include "cuda/etap/team.cuh"
#include "cuda/parts/ticket.cuh"

namespace flashlatent::etap {

/// One team's part of one unit, in the workspace. Those of the teams that share a request lie side by side.
template <class Config>
struct UnitPartial {
  float4 values[128];  // as in Exchange: a thread's four
  RowStatistics rows[Config::kRows];
};

using parts::Ticket;

/// One unit, by one warpgroup.
template <class Config>
class TeamMerge {
 public:
  /// Teams `first` to first + shares - 1 share the request. `lane`: which of its row tiles.
  __device__ __forceinline__ TeamMerge(const parts::DecodeArguments& args, int request, int first, int shares,
                                       int lane, int unit, int thread)
      : partials_(reinterpret_cast<UnitPartial<Config>*>(args.partial.out) +
                  (first * args.geometry.lanes + lane * shares) * Config::kUnits + unit * shares),
        ticket_(reinterpret_cast<Ticket*>(reinterpret_cast<UnitPartial<Config>*>(args.partial.out) +
                                          args.geometry.parts * args.geometry.lanes * Config::kUnits) +
                (request * args.geometry.lanes + lane) * Config::kUnits + unit),
        shares_(shares),
        unit_(unit),
        thread_(thread) {}

  /// `row`: of row thread % kRows.
  __device__ __forceinline__ void store(int share, const float (&x)[4], RowStatistics row) const {
    UnitPartial<Config>& partial = partials_[share];
    partial.values[thread_] = make_float4(x[0], x[1], x[2], x[3]);
    if (thread_ < Config::kRows) partial.rows[thread_] = row;
  }

  /// By one thread, after all have stored.
  __device__ __forceinline__ bool is_last() const { return parts::take_ticket(ticket_, shares_); }

  /// All teams' together in their order, unnormalised, and row n, thread % kRows, in one trip to memory.
  __device__ __forceinline__ RowStatistics add_up(float (&x)[4], int n, int column) const {
    float2 rows[kMostTeams];
    float4 units[kMostTeams];
#pragma unroll
    for (int i = 0; i < kMostTeams; ++i) {
      rows[i] = make_float2(-INFINITY, 0.0F);
      units[i] = make_float4(0, 0, 0, 0);
      if (i >= shares_) continue;
      rows[i] = __ldcg(reinterpret_cast<const float2*>(&partials_[i].rows[n]));
      units[i] = __ldcg(&partials_[i].values[thread_]);
    }
    RowStatistics all{-INFINITY, 0};
#pragma unroll
    for (const float2& row : rows) all.max = fmaxf(all.max, row.x);
    const float base = parts::finite_or_zero(all.max);
    const int at = 8 * Exchange<Config>::eight_rows(unit_) + column;
    x[0] = x[1] = x[2] = x[3] = 0;
#pragma unroll
    for (int i = 0; i < kMostTeams; ++i) {
      if (i >= shares_) break;
      const float weight = parts::exp2_fast(rows[i].x - base);
      all.sum += rows[i].y * weight;
      add_weighted(x, units[i], weight, at);
    }
    return all;
  }

 private:
  // As the workspace is reckoned on the host (team_launch.cu).
  static_assert(Config::kUnits <= kMostUnits);
  static_assert(Config::kUnits * sizeof(UnitPartial<Config>) ==
                Config::kRows * (Config::kVDim * sizeof(float) + Config::kUnits * sizeof(RowStatistics)));

  UnitPartial<Config>* const partials_;
  Ticket* const ticket_;
  const int shares_, unit_, thread_;
};

}  // namespace flashlatent::etap
