// The kernels of the CPU.
#include <algorithm>

#include "choose/cutters.h"
#include "choose/thresholds.h"
#include "cpu/block_math.h"
#include "cpu/dense.h"
#include "plan/prefix_plan.h"
#include "plan/schedule.h"
#include "plan/token_lists.h"

namespace flashlatent::choose {

namespace {

using cpu::kBlockTokens;
using cpu::kTileRows;

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  schedule::Geometry g;
  g.requests = cpu::items_of(problem);
  g.length_sharers = problem.sparse.enabled ? problem.query.tokens : 1;
  g.tile_rows = kTileRows;
  g.block_tokens = kBlockTokens;
  g.max_tokens = cpu::max_tokens(problem);
  if (problem.cache.extra.enabled) {
    schedule::set_lists(g, problem);
  } else if (problem.options.window > 0) {  // the most tokens that a request's query tokens see together
    const std::int64_t seen = std::int64_t{problem.options.window} + problem.query.tokens - 1;
    g.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(g.max_tokens, seen));
  }
  if (problem.options.batch_invariant) schedule::fix_splits(g, kFixedSplitTokens / kBlockTokens);
  // Converting queries and writing a tile take about as long as a block.
  g.cost = {.per_block = 4, .per_split = 4};
  // One thread a part: lanes would help if threads shared a cache, but they share only the last level.
  g.rounds = (problem.rows_per_kv_head() + kTileRows - 1) / kTileRows * problem.cache.heads;
  g.parts = workers;
  return g;
}

prefix::Shape prefix_shape(const DecodeProblem& problem, const schedule::Workers& workers) {
  const int heads = problem.cache.heads;
  return {.requests = problem.query.batch,
          .request_rows = problem.rows_per_kv_head(),
          .kv_heads = heads,
          .max_tokens = cpu::max_tokens(problem),
          .tile_rows = kTileRows,
          .block_tokens = kBlockTokens,
          .workers = workers,
          // Up to 16 rows are as fast as memory; 64 rows take four times as long.
          .read_cost = 1000 * heads,
          .tile_cost = 4000 * heads};
}

schedule::Geometry geometry_of_reference(const DecodeProblem& problem, const schedule::Workers&) {
  schedule::Geometry g;
  g.requests = problem.query.batch;
  return g;
}

}  // namespace

const Cutter kCpuDense = {.kernel = cpu::kDenseKernel, .geometry = geometry, .prefix_shape = prefix_shape};
const Cutter kReference = {.kernel = cpu::kReferenceKernel, .geometry = geometry_of_reference};

}  // namespace flashlatent::choose
