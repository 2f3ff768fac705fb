// What the fast kernel takes, and how its calls are cut.
#include <algorithm>

#include "core/message.h"
#include "cpu/block_math.h"
#include "cpu/dense.h"
#include "cpu/tokens.h"
#include "cpu/workspace.h"
#include "plan/host_plan.h"
#include "plan/prefix_plan.h"
#include "plan/token_lists.h"

namespace flashlatent::cpu {

namespace {

constexpr int kFixedSplitBlocks = 32;  // batch_invariant: 2,048 tokens a split

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  schedule::Geometry g;
  g.requests = items_of(problem);
  g.length_sharers = problem.sparse.enabled ? problem.query.tokens : 1;
  g.tile_rows = kTileRows;
  g.block_tokens = kBlockTokens;
  g.max_tokens = max_tokens(problem);
  if (problem.cache.extra.enabled) {
    schedule::set_lists(g, problem);
  } else if (problem.options.window > 0) {  // the most that a request's query tokens see together
    const std::int64_t seen = std::int64_t{problem.options.window} + problem.query.tokens - 1;
    g.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(g.max_tokens, seen));
  }
  if (problem.options.batch_invariant) schedule::fix_splits(g, kFixedSplitBlocks);
  // Converting queries and writing a tile take about as long as a block.
  g.cost = {.per_block = 4, .per_split = 4};
  // One thread a part: lanes would help in a cache that threads share, and they share only the last level.
  g.rounds = (problem.rows_per_kv_head() + kTileRows - 1) / kTileRows * problem.cache.heads;
  g.parts = workers;
  return g;
}

std::optional<std::string> declines_prefixes(const DecodeProblem& problem) {
  const int rows = problem.rows_per_kv_head();
  if (2 * rows <= kTileRows) return std::nullopt;
  return message("a request has ", rows, " query rows a KV head; at most ", kTileRows / 2, " are accepted");
}

prefix::Shape prefix_shape(const DecodeProblem& problem, const schedule::Workers& workers) {
  const int heads = problem.cache.heads;
  return {.requests = problem.query.batch,
          .request_rows = problem.rows_per_kv_head(),
          .kv_heads = heads,
          .max_tokens = max_tokens(problem),
          .tile_rows = kTileRows,
          .block_tokens = kBlockTokens,
          .workers = workers,
          // Up to 16 rows are as fast as memory; 64 rows take four times as long.
          .read_cost = 1000 * heads,
          .tile_cost = 4000 * heads};
}

}  // namespace

const DecodeKernel kDenseKernel = {
    .name = "cpu_dense",
    .backend = Backend::kCpu,
    .takes =
        "everything: latent, separate and packed caches in every format, dense and sparse; any "
        "dimensions, heads, query tokens (also ragged), page size and topk",
    .declines = [](const DecodeProblem&) -> std::optional<std::string> { return std::nullopt; },
    .geometry = geometry,
    .workspace_bytes = Workspace::bytes,
    .launch = launch_dense,
    .declines_prefixes = declines_prefixes,
    .prefix_shape = prefix_shape,
};

}  // namespace flashlatent::cpu
