// mla_64_e4m3.
#include "choose/cutters.h"
#include "choose/latent.h"
#include "choose/thresholds.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/mla_64_e4m3/takes.h"
#include "plan/geometries.h"

namespace flashlatent::choose {

namespace {

using cost::Cut;
using cost::Kernel;
using cost::Tile;

struct Shape {
  DenseShape line;
  cost::Costs shares;  // for CTAs with one share of one request each
};
constexpr Shape kShape16 = {
    {.tile_rows = mla_64_e4m3::kFewRows, .cost = cost::of(Kernel::kMla64E4m3, Tile::kRows16)},
    cost::of(Kernel::kMla64E4m3, {Cut::kShares, Tile::kRows16})};
constexpr Shape kShape64 = {
    {.tile_rows = mla_64_e4m3::kTileRows, .cost = cost::of(Kernel::kMla64E4m3, Tile::kRows64)},
    cost::of(Kernel::kMla64E4m3, Cut::kShares)};
constexpr Shape kShapeOfTiles = {
    {.tile_rows = mla_64_e4m3::kTileRows, .cost = cost::of(Kernel::kMla64E4m3, Tile::kTiles)},
    cost::of(Kernel::kMla64E4m3, {Cut::kShares, Tile::kTiles})};

/// Shares of one request each, so that a CTA has one segment, with a combine step. Not where CTAs never
/// split: then a workspace for larger batches may have no room for partial results.
std::optional<schedule::Geometry> shares_of_requests(const DecodeProblem& problem, schedule::Geometry line,
                                                     const schedule::Workers& workers,
                                                     const cost::Costs& costs) {
  if (line.partition != schedule::Partition::kLine || cuda::goes_by_lists(problem)) return std::nullopt;
  line.cost = costs.on(workers);
  return shares_of_items(problem, line, workers, kMla64E4m3Limits.shares);
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const int rows = cuda::rows_of_item(problem);
  const Shape& shape = rows <= mla_64_e4m3::kFewRows    ? kShape16
                       : rows <= mla_64_e4m3::kTileRows ? kShape64
                                                        : kShapeOfTiles;
  const schedule::Geometry line = dense_geometry(problem, workers, shape.line);
  const std::optional<schedule::Geometry> shares = shares_of_requests(problem, line, workers, shape.shares);
  return shares && schedule::estimate(*shares) <= schedule::estimate(line) ? *shares : line;
}

/// Sparse prefill.
schedule::Geometry turns(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool few = cuda::rows_of_item(problem) <= mla_64_e4m3::kFewRows;
  const cost::Costs cost = few ? cost::of(Kernel::kMla64E4m3, {Cut::kTurns, Tile::kRows16})
                               : cost::of(Kernel::kMla64E4m3, Cut::kTurns);
  return turns_geometry(problem, workers,
                        {.tile_rows = few ? mla_64_e4m3::kFewRows : mla_64_e4m3::kTileRows, .cost = cost});
}

}  // namespace

const Cutter kMla64E4m3 = {.kernel = cuda::kE4m3Kernel, .geometry = geometry, .turns = turns};

}  // namespace flashlatent::choose
