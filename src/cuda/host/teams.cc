#include "cuda/host/teams.h"

#include <algorithm>

#include "cost/model.h"
#include "cost/times.h"
#include "cuda/sm90/walk/merge_room.h"
#include "cuda/sm90/walk/team_room.h"
#include "plan/host_plan.h"

namespace flashlatent::cuda {

namespace {

/// Teams that are resident at the same time. An H200's GPCs have 16 or 18 SMs each, minus those that are
/// switched off: 15 teams of 8, 7 of 16. Other devices may have one more, which is not used, or fewer.
constexpr int kUnusedSms = 12;
int resident_teams(int team, const schedule::Workers& workers) {
  const int ctas = std::min(std::max(workers.count - kUnusedSms, 0), sm90::kMostTeamCtas);
  return within_room(ctas / team, team, workers);
}
constexpr int kFewBlocks = 4;  // of a CTA

/// Each request is done by one team, or by several that merge in the kernel. A lone request gets as many
/// teams as make the longest share of a CTA shortest, by the page table's reach; for several requests lengths
/// decide. Where memory binds by far a lone request gets all teams: that only some CTAs have a last block
/// costs nothing then (H100, 131,072 tokens: 14 teams 59.0 us, 13 teams 60.7).
schedule::Geometry shared_items(schedule::Geometry g, const cost::TeamCosts& costs, int workers) {
  g.partition = schedule::Partition::kTeamShares;
  g.cost = cost::of_team_parts(g, costs, workers);
  if (cost::memory_binds(costs)) return g;
  schedule::Geometry fewer = g;
  for (int parts = g.parts - 1; parts > 0 && g.requests == 1; --parts) {
    fewer.parts = parts;
    fewer.cost = cost::of_team_parts(fewer, costs, workers);
    if (schedule::estimate(fewer) <= schedule::estimate(g)) g = fewer;
  }
  return g;
}

}  // namespace

schedule::Geometry team_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                 const TeamShape& shape) {
  const cost::TeamCosts costs = shape.costs.on(workers);
  const int teams = resident_teams(shape.team, workers);
  schedule::Geometry g =
      split_geometry(problem, workers.some(teams * shape.team),
                     {.tile_rows = shape.tile_rows, .cost = {cost::kNever}, .team = shape.team});
  if (g.requests == 0) return g;
  g.lanes *= g.rounds;  // row tiles are always side by side
  g.rounds = 1;
  g.parts = std::max(g.requests, teams / g.lanes);
  // do some teams have to wait for others to end?
  const bool waits = std::int64_t{g.parts} * g.lanes > teams;
  // Otherwise kNever stays, as on a slice of a device that may not hold one team.
  if (!waits) g.cost = cost::of_team_parts(g, costs, workers);
  schedule::Geometry whole = *schedule::whole_items(g);
  if (waits) return whole;
  whole.cost = cost::of_team_parts(whole, costs, workers);
  // With fewer than two teams a request, sharing helps only the longer requests and costs all of them a
  // merge. It was no faster with teams of 16, which are few (4 requests of 4,096 tokens: 11.2 us, by teams of
  // 8 10.5).
  if (g.parts == g.requests ||
      (2 * g.requests > g.parts && g.team <= 8 && schedule::max_blocks(g) <= kFewBlocks * g.team)) {
    return whole;
  }
  // A lone request gains most from being shared, so it decides.
  schedule::Geometry lone = g;
  lone.parts -= g.requests - 1;
  lone.requests = 1;
  if (schedule::estimate(whole) <= schedule::estimate(shared_items(lone, costs, workers))) return whole;
  g = shared_items(g, costs, workers);
  if (g.requests == 1) g.cost = cost::of_lone_request(g.cost, costs);
  return g;
}

schedule::CallTimes team_times(const schedule::Geometry& g, const schedule::Workers& workers,
                               const TeamShape& shape) {
  return cost::of_team_parts(g, shape.costs.on(workers));
}

std::size_t team_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  const std::size_t rows = g.tile_rows;
  // values and tags, as UnitPartial has them (merge/team_merge.cuh)
  const std::size_t partial =
      rows * problem.cache.v_dim * 8 + sm90::kMostUnits * (rows * 16 + sm90::kUnitMergesBytes);
  return std::max(decode_workspace_bytes(problem, g),
                  sm90::kMergeStateBytes + sm90::kMostTeamCtas / g.team * partial);
}

std::string not_invariant() {
  return "batch_invariant is true; false is accepted, since the batch decides how a request is shared out";
}

}  // namespace flashlatent::cuda
