// The results of several teams that share a request (schedule::kShared), merged without a launch: the owner
// of a unit leaves what its team has of it in the workspace, and takes a ticket; who gets the last one adds
// up all teams' in their order, and writes. Each unit has tickets of its own: nobody waits for anybody.
//
// A ticket is a count below a word that says that it is one. The workspace may hold anything before a call,
// and any call leaves its tickets at 0: only where that word does not stand is a ticket begun anew.
#pragma once

#include "cuda/etap/instances.h"
#include "cuda/etap/team.cuh"

namespace flashlatent::etap {

/// One team's part of one unit, in the workspace. Those of the teams that share a request lie side by side.
template <class Config>
struct UnitPartial {
  float4 values[128];  // as in Exchange: a thread's four
  RowStatistics rows[Config::kRows];
};

using Ticket = unsigned long long;

/// Takes one of `count` tickets; true for the last of them. Everything that the CTA's threads wrote before a
/// barrier that this thread passed is there for who reads after the last ticket.
__device__ __forceinline__ bool take_ticket(Ticket* ticket, int count) {
  constexpr Ticket kName = 0x7E4A5C0D1F3B0000;  // the count is below it
  Ticket before = ptx::add_at_gpu(ticket, 1);
  // Not a ticket yet. What was added to it until it is one counts for nothing.
  while ((before & ~0xFFFFULL) != kName) {
    const Ticket found = ptx::add_at_gpu(ticket, 0);
    const bool is_one = (found & ~0xFFFFULL) == kName;
    const Ticket counted = (is_one ? found : kName) + 1;
    if (atomicCAS(ticket, found, counted) == found) before = counted - 1;
  }
  const bool last = before - kName == static_cast<Ticket>(count - 1);
  if (last) *ticket = kName;
  return last;
}

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
  __device__ __forceinline__ bool is_last() const { return take_ticket(ticket_, shares_); }

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
