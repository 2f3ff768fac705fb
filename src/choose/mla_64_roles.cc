// mla_64_roles.
#include "choose/cutters.h"
#include "choose/latent.h"
#include "choose/latent_times.h"
#include "choose/thresholds.h"
#include "cost/model.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/mla_64_roles/takes.h"
#include "plan/even_shares.h"
#include "plan/geometries.h"

namespace flashlatent::choose {

namespace {

using cost::Cut;
using cost::Kernel;
using cost::Source;
using cost::Tile;

constexpr DenseShape kShape = {.tile_rows = mla_64_roles::kTileRows,
                               .cost = cost::of(Kernel::kMla64Roles, Tile::kRows64)};
constexpr DenseShape kShapeByTokens = {
    .tile_rows = mla_64_roles::kTileRows,
    .cost = cost::of(Kernel::kMla64Roles, {Source::kTokens, Tile::kRows64})};
constexpr DenseShape kShapeOfTiles = {.tile_rows = mla_64_roles::kTileRows,
                                      .cost = cost::of(Kernel::kMla64Roles, Tile::kTiles)};

/// Shares of one request each, so that a CTA has one segment. Empty where even_items() is: then a workspace
/// for larger batches may have no room for partial results.
std::optional<schedule::Geometry> shares_of_requests(schedule::Geometry line,
                                                     const schedule::Workers& workers) {
  line.cost = cost::of(Kernel::kMla64Roles, {Cut::kShares, Tile::kTiles}).on(workers);
  if (line.requests <= 1) return schedule::even_items(line);
  const Mla64RolesLimits& limits = kMla64RolesLimits;
  const int shares = line.parts / line.requests;
  if (line.requests > limits.few_requests && schedule::max_blocks(line) > limits.most_blocks * shares)
    return std::nullopt;
  if (line.lanes > 2 && 5 * line.requests * shares < limits.least_fifths * line.parts) return std::nullopt;
  cost::add(line.cost, cost::of(Kernel::kLatent, Cut::kReadsPlan).on(workers));
  return schedule::items_by_length(line);
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool one_tile = problem.rows_per_kv_head() <= mla_64_roles::kTileRows;
  const DenseShape& shape_of_one =
      cuda::loading_of(problem) == cuda::Loading::kTokens ? kShapeByTokens : kShape;
  schedule::Geometry line = dense_geometry(problem, workers, one_tile ? shape_of_one : kShapeOfTiles);
  if (one_tile || line.lanes > kMla64RolesLimits.most_lanes) return line;
  if (schedule::cuts_line(line.partition) && line.requests == 1 && line.lanes == 2) {
    cost::add(line.cost, cost::of(Kernel::kMla64Roles, Cut::kLoneRequest).on(workers));
  }
  std::optional<schedule::Geometry> shares = shares_of_requests(line, workers);
  if (!shares || schedule::estimate(*shares) >= schedule::estimate(line)) return line;
  // Only to compare with mla_64_pingpong's shares: the costs of a line are the same for both dtypes and all
  // loaders.
  if (problem.cache.dtype == Dtype::kF16) {
    cost::add(shares->cost, cost::of(Kernel::kLatent, Cut::kPartials32).on(workers));
  }
  if (mla_64_roles::key_of(problem).loading == cuda::Loading::kTokens) {
    cost::add(shares->cost, cost::of(Kernel::kMla64Roles, Source::kTokens).on(workers));
  }
  return *shares;
}

schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  constexpr cost::Costs kTimes = cost::of(Kernel::kMla64Roles, Cut::kTimes);
  constexpr cost::Costs kTimesByTokens = cost::of(Kernel::kMla64Roles, {Source::kTokens, Cut::kTimes});
  constexpr cost::Costs kTimesOfTiles = cost::of(Kernel::kMla64Roles, {Cut::kTimes, Tile::kTiles});
  constexpr cost::Costs kQueryTokens = cost::of(Kernel::kMla64Roles, Cut::kQueryTokens);
  const auto of_call = [&] {
    if (schedule::combines_shares(g.partition)) {
      return share_times(g, workers, cost::of(Kernel::kMla64Roles, {Cut::kShares, Tile::kTiles}));
    }
    if (problem.rows_per_kv_head() > mla_64_roles::kTileRows) {
      return dense_times(g, workers, kTimesOfTiles);
    }
    return dense_times(g, workers,
                       cuda::loading_of(problem) == cuda::Loading::kTokens ? kTimesByTokens : kTimes);
  };
  return with_query_tokens(of_call(), problem, kQueryTokens, workers);
}

schedule::Geometry turns(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool one_tile = problem.rows_per_kv_head() <= mla_64_roles::kTileRows;
  const cost::Costs cost = one_tile ? cost::of(Kernel::kMla64Roles, Cut::kTurns)
                                    : cost::of(Kernel::kMla64Roles, {Cut::kTurns, Tile::kTiles});
  return turns_geometry(problem, workers, {.tile_rows = mla_64_roles::kTileRows, .cost = cost});
}

}  // namespace

const Cutter kMla64Roles = {
    .kernel = cuda::kMla64RolesKernel, .geometry = geometry, .times = times, .turns = turns};

}  // namespace flashlatent::choose
