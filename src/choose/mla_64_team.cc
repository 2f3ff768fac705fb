// mla_64_team: a cluster has one item's row tile, and each of its CTAs one or two blocks.
#include <algorithm>

#include "choose/cutters.h"
#include "choose/latent.h"
#include "choose/teams.h"
#include "choose/thresholds.h"
#include "cost/model.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/mla_64_pingpong/takes.h"
#include "plan/geometries.h"
#include "plan/token_lists.h"

namespace flashlatent::choose {

namespace {

using cost::Kernel;
using mla_64_pingpong::kMostTeam;
using mla_64_pingpong::kMostTeamBlocks;
using mla_64_pingpong::kTileRows;

static_assert(kMostTeam == AnyTeamLimits::kMostTeam);

/// per_merge: what the exchange of kTileRows rows takes. per_call: for calls with more CTAs than half of the
/// multiprocessors.
constexpr cost::Costs kCost = cost::of(Kernel::kMla64Team, cost::Cut::kTeams);
/// Query rows of a tile: with fewer there are more tiles, whose CTAs send less.
constexpr int kRowsOfTiles[] = {kTileRows, kTileRows / 2, kTileRows / 4};
/// How a call is cut: query rows of a tile, and CTAs of a team. `resident`: no team waits for another to end.
struct Cut {
  int rows, team;
  bool resident;
  schedule::CostModel cost;
};

/// x / y, rounded up.
constexpr int over(int x, int y) {
  return (x + y - 1) / y;
}

int resident_teams(int team, const schedule::Workers& workers) {
  team = std::min(team, kMostTeam);
  const auto usual =
      std::int64_t{kAnyTeamLimits.resident[team - 1]} * workers.count / kAnyTeamLimits.multiprocessors;
  return within_room(static_cast<int>(usual), team, workers);
}

Cut cut_of(const DecodeProblem& problem, const schedule::Workers& workers, int rows, int blocks_each) {
  const int of_item = cuda::rows_of_item(problem);
  const std::int64_t tiles =
      std::int64_t{problem.query.batch} * problem.query.tokens * over(of_item, rows) * problem.cache.heads;
  Cut cut = {};
  cut.rows = rows;
  cut.team = std::max(over(mla_64_pingpong::team_blocks_of(problem), blocks_each), 1);
  cut.resident = cut.team <= kMostTeam && tiles <= resident_teams(cut.team, workers);
  cut.cost = kCost.on(workers);
  cut.cost.per_split += cut.cost.per_merge * std::min(rows, of_item) / kTileRows;
  cut.cost.per_merge = 0;
  if (2 * tiles * cut.team <= workers) cut.cost.per_call = 0;
  return cut;
}

/// The fastest cut whose teams are all resident; if there is none, the cut with the fewest CTAs, whose teams
/// are the smallest.
Cut best_cut(const DecodeProblem& problem, const schedule::Workers& workers) {
  Cut best = cut_of(problem, workers, kTileRows, kMostTeamBlocks);
  std::int32_t least = 0;
  for (int rows : kRowsOfTiles) {
    for (int each = 1; each <= kMostTeamBlocks; ++each) {
      const Cut cut = cut_of(problem, workers, rows, each);
      const std::int32_t time = cut.cost.per_call + cut.cost.per_split + each * cut.cost.per_block;
      if (!cut.resident || (least > 0 && time >= least)) continue;
      best = cut;
      least = time;
    }
  }
  return best;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const Cut cut = best_cut(problem, workers);
  schedule::Geometry g =
      split_geometry(problem, workers.some(std::max(resident_teams(cut.team, workers), 1) * cut.team),
                     {.tile_rows = cut.rows, .cost = {cost::kNever}, .team = cut.team});
  if (g.requests == 0) return g;
  g.lanes *= g.rounds;  // row tiles are always side by side
  g.rounds = 1;
  if (cut.resident) g.cost = cost::by_team(cut.cost, cut.team);
  g.parts = g.requests;
  return *schedule::whole_items(g);
}

}  // namespace

const Cutter kMla64Team = {.kernel = cuda::kMla64TeamKernel, .geometry = geometry};

}  // namespace flashlatent::choose
