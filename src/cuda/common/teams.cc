#include "cuda/common/teams.h"

#include <algorithm>

#include "cost/model.h"
#include "cuda/parts/merge_room.h"
#include "cuda/parts/team_room.h"
#include "plan/host_plan.h"

namespace flashlatent::cuda {

namespace {

/// Teams that run at once: on an H200, whose GPCs have 16 or 18 SMs each but for those that are switched off,
/// 15 of 8 and 7 of 16. Other devices may run one more or less.
constexpr int kUnusedSms = 12;
constexpr int resident_teams(int team, int workers) {
  return std::min(std::max(workers - kUnusedSms, 0), parts::kMostTeamCtas) / team;
}
constexpr int kFewBlocks = 4;  // a CTA

/// Each request is the work of one team, or of several that merge in the kernel. A lone one is that of as
/// many as make the longest share of a CTA shortest, by the page table's reach; of others lengths decide.
/// Where memory binds by far it has all: a share's last block, which some have and others not, is no loss
/// there (an H100, 131,072 tokens: 14 teams 59.0 us, 13 60.7).
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
  g.lanes *= g.rounds;  // row tiles side by side
  g.rounds = 1;
  g.parts = std::max(g.requests, teams / g.lanes);
  const bool waits = std::int64_t{g.parts} * g.lanes > teams;  // some teams for others' end
  // On a slice of a device that may not hold one team it is no choice.
  if (!waits) g.cost = cost::of_team_parts(g, costs, workers);
  schedule::Geometry whole = *schedule::whole_items(g);
  if (waits) return whole;
  whole.cost = cost::of_team_parts(whole, costs, workers);
  // With fewer than two teams a request sharing helps the longer ones only, and costs all of them a merge. Of
  // teams of 16 there are so few that it was no faster (4 requests of 4,096 tokens: 11.2 us, 10.5 by 8).
  if (g.parts == g.requests ||
      (2 * g.requests > g.parts && g.team <= 8 && schedule::max_blocks(g) <= kFewBlocks * g.team)) {
    return whole;
  }
  // A lone request gains most from being shared.
  schedule::Geometry lone = g;
  lone.parts -= g.requests - 1;
  lone.requests = 1;
  if (schedule::estimate(whole) <= schedule::estimate(shared_items(lone, costs, workers))) return whole;
  g = shared_items(g, costs, workers);
  if (g.requests == 1) g.cost = cost::of_lone_request(g.cost, costs);
  return g;
}

std::size_t team_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  const std::size_t rows = g.tile_rows;
  const std::size_t partial = rows * problem.cache.v_dim * 8 +  // as UnitPartial has them
                              parts::kMostUnits * (rows * 16 + parts::kUnitMergesBytes);
  return std::max(decode_workspace_bytes(problem, g),
                  parts::kMergeStateBytes + parts::kMostTeamCtas / g.team * partial);
}

std::string not_invariant() {
  return "batch_invariant is true; false is accepted, since the batch decides how a request is shared out";
}

}  // namespace flashlatent::cuda
