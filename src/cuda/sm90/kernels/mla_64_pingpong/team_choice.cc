// mla_64_pingpong by teams of any size from fp8_584 by indices, for calls too small to fill the device: a
// cluster has one item's row tile, and each of its CTAs one block of it, or two (any_team.cuh).
#include <algorithm>

#include "core/message.h"
#include "cost/model.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/dense_choice.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/teams.h"
#include "cuda/sm90/kernels/mla_64_pingpong/choice.h"
#include "plan/host_plan.h"
#include "plan/token_lists.h"

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;
using mla_64_pingpong::kMostTeam;
using mla_64_pingpong::kMostTeamBlocks;
using mla_64_pingpong::kTileRows;

/// per_merge: what the exchange of kTileRows rows takes. per_call: of calls whose CTAs are more than half of
/// the multiprocessors.
constexpr cost::Costs kCost = cost::of(Kernel::kMla64Team, Situation::kTeams);
/// Query rows of a tile: with fewer there are more tiles, whose CTAs send less.
constexpr int kRowsOfTiles[] = {kTileRows, kTileRows / 2, kTileRows / 4};

/// x / y, rounded up.
constexpr int over(int x, int y) {
  return (x + y - 1) / y;
}

/// Teams of 1, 2, ... CTAs that are resident at the same time on an H200, as cudaOccupancyMaxActiveClusters()
/// says. A cluster lies within a GPC.
constexpr int kResident[kMostTeam] = {132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7};
constexpr int kWorkersOfH200 = 132;

int resident_teams(int team, const schedule::Workers& workers) {
  team = std::min(team, kMostTeam);
  const auto usual = std::int64_t{kResident[team - 1]} * workers.count / kWorkersOfH200;
  return within_room(static_cast<int>(usual), team, workers);
}

int blocks_of(const DecodeProblem& problem) {
  schedule::Geometry g;
  schedule::set_lists(g, problem);
  return schedule::max_blocks(g);
}

/// How a call is cut: query rows of a tile, and CTAs of a team. `resident`: no team waits for another to end.
struct Cut {
  int rows, team;
  bool resident;
  schedule::CostModel cost;
};

Cut cut_of(const DecodeProblem& problem, const schedule::Workers& workers, int rows, int blocks_each) {
  const int of_item = rows_of_item(problem);
  const std::int64_t tiles =
      std::int64_t{problem.query.batch} * problem.query.tokens * over(of_item, rows) * problem.cache.heads;
  Cut cut = {};
  cut.rows = rows;
  cut.team = std::max(over(blocks_of(problem), blocks_each), 1);
  cut.resident = cut.team <= kMostTeam && tiles <= resident_teams(cut.team, workers);
  cut.cost = kCost.on(workers);
  cut.cost.per_split += cut.cost.per_merge * std::min(rows, of_item) / kTileRows;
  cut.cost.per_merge = 0;
  if (2 * tiles * cut.team <= workers) cut.cost.per_call = 0;
  return cut;
}

/// The fastest cut of those whose teams are all resident; else the one with the fewest CTAs, whose teams are
/// the smallest.
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

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_lists(problem, {KvFormat::kFp8_584})) return reason;
  const ExtraCache& extra = problem.cache.extra;
  if (!problem.sparse.enabled || (extra.enabled && !extra.indexed)) {
    return message("tokens of the ", problem.sparse.enabled ? "extra" : "fp8_584",
                   " cache come by page table; indices are accepted");
  }
  if (problem.query.ragged) return "queries are ragged; the same number of tokens a request is accepted";
  if (problem.options.batch_invariant) return not_invariant();
  if (const int blocks = blocks_of(problem); blocks > kMostTeam * kMostTeamBlocks) {
    return message("topk and the extra cache's make ", blocks, " blocks of 64 tokens; at most ",
                   kMostTeam * kMostTeamBlocks, " are accepted");
  }
  return std::nullopt;
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

const DecodeKernel kMla64TeamKernel = {
    .name = "mla_64_team",
    .backend = Backend::kCuda,
    .takes =
        "fp8_584 caches, sparse, with an extra cache by indices or without, up to 32 blocks of 64 tokens, "
        "any rows and page size, for small batches; not with batch_invariant",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_64_pingpong::launch_teams),
};

}  // namespace flashlatent::cuda
