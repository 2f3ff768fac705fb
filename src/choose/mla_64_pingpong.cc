// mla_64_pingpong.
#include <algorithm>

#include "choose/cutters.h"
#include "choose/latent.h"
#include "choose/latent_times.h"
#include "choose/teams.h"
#include "choose/thresholds.h"
#include "cost/model.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/mla_64_pingpong/takes.h"
#include "plan/geometries.h"

namespace flashlatent::choose {

namespace {

using cost::Cut;
using cost::Kernel;
using cost::Source;
using cost::Tile;

constexpr DenseShape kShape = {.tile_rows = mla_64_pingpong::kTileRows,
                               .cost = cost::of(Kernel::kMla64Pingpong, Tile::kRows64)};
constexpr DenseShape kShapeOfTiles = {.tile_rows = mla_64_pingpong::kTileRows,
                                      .cost = cost::of(Kernel::kMla64Pingpong, Tile::kTiles)};
constexpr DenseShape kShapeFp8_584 = {.tile_rows = mla_64_pingpong::kTileRows,
                                      .cost = cost::of(Kernel::kMla64Pingpong, Source::kRopeRecords)};
constexpr DenseShape kShapeFp8_584OfTiles = {
    .tile_rows = mla_64_pingpong::kTileRows,
    .cost = cost::of(Kernel::kMla64Pingpong, {Source::kRopeRecords, Tile::kTiles})};
constexpr DenseShape kShapeOfRecords = {.tile_rows = mla_64_pingpong::kTileRows,
                                        .cost = cost::of(Kernel::kMla64Pingpong, Source::kRecords)};
constexpr DenseShape kShapeOfRecordsShares = {
    .tile_rows = mla_64_pingpong::kTileRows,
    .cost = cost::of(Kernel::kMla64Pingpong, {Source::kRecords, Cut::kShares})};
constexpr DenseShape kShapeOfListedShares = {.tile_rows = mla_64_pingpong::kTileRows,
                                             .cost = cost::of(Kernel::kMla64Pingpong, Cut::kListedShares)};
constexpr DenseShape kShapeOfListedSharesOfTiles = {
    .tile_rows = mla_64_pingpong::kTileRows,
    .cost = cost::of(Kernel::kMla64Pingpong, {Cut::kListedShares, Tile::kTiles})};
constexpr DenseShape kShapeFp8 = {.tile_rows = mla_64_pingpong::kTileRows,
                                  .cost = cost::of(Kernel::kMla64Pingpong, Source::kFp8)};
constexpr cost::Costs kTeamCost = cost::of(Kernel::kMla64Pingpong, Cut::kTeams);
constexpr cost::Costs kTeamCostOfTwoTiles = cost::of(Kernel::kMla64Pingpong, {Cut::kTeams, Tile::kTiles});
constexpr cost::Costs kEvenCost = cost::of(Kernel::kMla64Pingpong, Cut::kShares);
constexpr cost::Costs kEvenCostOfTwoTiles = cost::of(Kernel::kMla64Pingpong, {Cut::kShares, Tile::kTiles});

bool fits_one_tile(const DecodeProblem& problem) {
  return problem.rows_per_kv_head() <= mla_64_pingpong::kTileRows;
}

/// A team of so many CTAs for each request and row tile, if there is room for all teams at once: no plan to
/// read, no workspace, no combine step.
std::optional<schedule::Geometry> team_geometry(const DecodeProblem& problem,
                                                const schedule::Workers& workers, int team) {
  const int teams = within_room(std::max(workers - kUnusedByTeams, 0) / team, team, workers);
  if (teams == 0 || cuda::loading_of(problem) != cuda::Loading::kBoxes ||
      mla_64_pingpong::has_spans(problem) ||
      !cuda::is_listed({mla_64_pingpong::kTeamKeys576x512},
                       mla_64_pingpong::key_of(problem, cuda::Loading::kBoxes, 1, team)))
    return std::nullopt;
  const bool one_tile = fits_one_tile(problem);
  schedule::Geometry g = split_geometry(problem, workers.some(teams * team),
                                        {.tile_rows = mla_64_pingpong::kTileRows,
                                         .cost = one_tile ? kTeamCost : kTeamCostOfTwoTiles,
                                         .team = team});
  if (schedule::max_blocks(g) > kMla64PingpongLimits.most_team_blocks * team) return std::nullopt;
  g.lanes *= g.rounds;
  g.rounds = 1;
  g.parts = teams / g.lanes;
  g.cost = cost::by_team(g.cost, team);
  return schedule::whole_items(g);
}

/// The same from a bf16 or fp16 cache, with one share a CTA. `line` is the schedule without shares.
std::optional<schedule::Geometry> even_geometry(const DecodeProblem& problem,
                                                const schedule::Workers& workers,
                                                const schedule::Geometry& line) {
  // If CTAs never split, a workspace for larger batches may have no room for partial results.
  if (line.partition != schedule::Partition::kLine || line.lanes > 2 ||
      !cuda::is_listed({mla_64_pingpong::kShareKeys576x512, mla_64_pingpong::kFp8ShareKeys},
                       mla_64_pingpong::share_key_of(problem, line)))
    return std::nullopt;
  schedule::Geometry split =
      split_geometry(problem, workers, {.tile_rows = mla_64_pingpong::kTileRows, .cost = {}});
  split.cost = (fits_one_tile(problem) ? kEvenCost : kEvenCostOfTwoTiles).on(workers);
  if (problem.cache.dtype == Dtype::kF16) {
    cost::add(split.cost, cost::of(Kernel::kLatent, Cut::kPartials32).on(workers));
  }
  if (problem.rows_per_kv_head() <= kMla64PingpongLimits.few_rows) {
    cost::add(split.cost, cost::of(Kernel::kMla64Pingpong, Cut::kFewRows).on(workers));
  }
  return shares_of_items(problem, split, workers);
}

/// By clusters of two.
schedule::Geometry fp8_geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const schedule::Geometry g = dense_geometry(problem, workers, kShapeFp8);
  if (mla_64_pingpong::cluster_of(problem, g, cuda::Loading::kFp8) == 1) return g;
  const std::optional<schedule::Geometry> shares = shares_of_items(problem, g, workers);
  return shares && schedule::estimate(*shares) <= schedule::estimate(g) ? *shares : g;
}

/// May shapes tell a part's whole items (knows_items() of the kernel)?
bool tells_items(const DecodeProblem& problem) {
  return cuda::loading_of(problem) == cuda::Loading::kBoxes && !problem.query.ragged;
}

/// Do parts have whole items of few blocks, which shapes tell (knows_items() of the kernel)?
bool has_few_known_blocks(const DecodeProblem& problem, const schedule::Geometry& g) {
  const bool whole = g.partition == schedule::Partition::kWhole || g.partition == schedule::Partition::kTurns;
  return whole && tells_items(problem) && schedule::max_blocks(g) <= kMla64PingpongLimits.few_whole_blocks;
}

schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  constexpr cost::Costs kTimes = cost::of(Kernel::kMla64Pingpong, Cut::kTimes);
  constexpr cost::Costs kTimesOfTiles = cost::of(Kernel::kMla64Pingpong, {Cut::kTimes, Tile::kTiles});
  constexpr cost::Costs kQueryTokens = cost::of(Kernel::kMla64Pingpong, Cut::kQueryTokens);
  constexpr cost::Costs kTeamQueryTokens = cost::of(Kernel::kMla64Pingpong, Cut::kTeamQueryTokens);
  const bool one_tile = fits_one_tile(problem);
  if (g.team > 1) return with_query_tokens(cost::of_shares(g), problem, kTeamQueryTokens, workers);
  schedule::CallTimes times = schedule::combines_shares(g.partition)
                                  ? share_times(g, workers, one_tile ? kEvenCost : kEvenCostOfTwoTiles)
                                  : dense_times(g, workers, one_tile ? kTimes : kTimesOfTiles);
  constexpr cost::Costs kKnown = cost::of(Kernel::kMla64Pingpong, Cut::kUnplanned);
  if (has_few_known_blocks(problem, g)) times = cost::with(times, kKnown.on(workers).per_call);
  return with_query_tokens(times, problem, kQueryTokens, workers);
}

/// Whole items in turn in place of a line, if they are expected to take less.
schedule::Geometry in_turn_if_expected_faster(const DecodeProblem& problem, const schedule::Geometry& line,
                                              const schedule::Workers& workers) {
  if (line.partition != schedule::Partition::kLine || line.requests < 1 || !tells_items(problem) ||
      problem.options.prefix_sharing != PrefixSharing::kOff ||
      schedule::max_blocks(line) > kMla64PingpongLimits.most_blocks_in_turn)
    return line;
  const schedule::Geometry in_turn = schedule::turns(line);
  return cost::expected(times(problem, in_turn, workers)) < cost::expected(times(problem, line, workers))
             ? in_turn
             : line;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  if (cuda::goes_by_lists(problem)) {
    const bool one_tile = cuda::rows_of_item(problem) <= mla_64_pingpong::kTileRows;
    const bool records = cuda::loading_of(problem) == cuda::Loading::kRecords;
    const schedule::Geometry g = dense_geometry(problem, workers,
                                                records    ? kShapeOfRecords
                                                : one_tile ? kShapeFp8_584
                                                           : kShapeFp8_584OfTiles);
    if (!mla_64_pingpong::has_listed_shares(problem, g)) return g;
    const DenseShape& of_shares = records    ? kShapeOfRecordsShares
                                  : one_tile ? kShapeOfListedShares
                                             : kShapeOfListedSharesOfTiles;
    return in_turn_if_faster(problem, listed_geometry(problem, workers, of_shares, g));
  }
  if (problem.cache.format == KvFormat::kFp8_656) return fp8_geometry(problem, workers);
  if (problem.cache.format == KvFormat::kE4m3) return dense_geometry(problem, workers, kShapeFp8);
  schedule::Geometry best = dense_geometry(problem, workers, fits_one_tile(problem) ? kShape : kShapeOfTiles);
  if (schedule::cuts_line(best.partition) && best.requests == 1 && best.lanes == 2) {
    cost::add(best.cost, cost::of(Kernel::kMla64Pingpong, Cut::kLoneRequest).on(workers));
  }
  const std::optional<schedule::Geometry> shares = even_geometry(problem, workers, best);
  best = in_turn_if_expected_faster(problem, best, workers);
  const auto take_faster = [&](const std::optional<schedule::Geometry>& g) {
    if (g && schedule::estimate(*g) < schedule::estimate(best)) best = *g;
  };
  for (int team : {8, 4, 2}) take_faster(team_geometry(problem, workers, team));
  take_faster(shares);
  return best;
}

schedule::Geometry turns(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool one_tile = cuda::rows_of_item(problem) <= mla_64_pingpong::kTileRows;
  const auto cost = [&] {
    switch (cuda::loading_of(problem)) {
      case cuda::Loading::kFp8:
      case cuda::Loading::kListedFp8:
        return cost::of(Kernel::kMla64Pingpong, {Source::kFp8, Cut::kTurns});
      case cuda::Loading::kRecords:
        return cost::of(Kernel::kMla64Pingpong, {Source::kRecords, Cut::kTurns});
      case cuda::Loading::kRopeRecords:
        return one_tile ? cost::of(Kernel::kMla64Pingpong, {Source::kRopeRecords, Cut::kTurns})
                        : cost::of(Kernel::kMla64Pingpong, {Source::kRopeRecords, Cut::kTurns, Tile::kTiles});
      case cuda::Loading::kBoxes:
      case cuda::Loading::kTokens:
      case cuda::Loading::kListedTokens:
        break;
    }
    return one_tile ? cost::of(Kernel::kMla64Pingpong, Cut::kTurns)
                    : cost::of(Kernel::kMla64Pingpong, {Cut::kTurns, Tile::kTiles});
  };
  return turns_geometry(problem, workers, {.tile_rows = mla_64_pingpong::kTileRows, .cost = cost()});
}

}  // namespace

const Cutter kMla64Pingpong = {
    .kernel = cuda::kMla64PingpongKernel, .geometry = geometry, .times = times, .turns = turns};

}  // namespace flashlatent::choose
