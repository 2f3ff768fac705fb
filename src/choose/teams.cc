#include "choose/teams.h"

#include <algorithm>

#include "cost/model.h"
#include "cost/times.h"
#include "cuda/sm90/walk/team_room.h"
#include "plan/geometries.h"

namespace flashlatent::choose {

namespace {

int resident_teams(int team, const schedule::Workers& workers) {
  const int ctas = std::min(std::max(workers.count - kUnusedByTeams, 0), sm90::kMostTeamCtas);
  return within_room(ctas / team, team, workers);
}

/// Each request has one team, or several that merge in the kernel. A lone request gets as many teams as make
/// the longest share of a CTA shortest, by the page table's reach; for several requests lengths decide. Where
/// memory binds by far, a lone request gets all teams: then it costs nothing that only some CTAs have a last
/// block (H100, 131,072 tokens: 14 teams 59.0 us, 13 teams 60.7).
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
  // Otherwise kNever stays: a slice of a device may not hold one team.
  if (!waits) g.cost = cost::of_team_parts(g, costs, workers);
  schedule::Geometry whole = *schedule::whole_items(g);
  if (waits) return whole;
  whole.cost = cost::of_team_parts(whole, costs, workers);
  // With fewer than two teams a request, sharing helps only the longer requests and costs all of them a
  // merge.
  if (g.parts == g.requests || (2 * g.requests > g.parts && g.team <= kTeamLimits.small_team &&
                                schedule::max_blocks(g) <= kTeamLimits.few_blocks * g.team)) {
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

}  // namespace flashlatent::choose
