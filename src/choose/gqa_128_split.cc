// gqa_128_split.
#include <algorithm>

#include "choose/cutters.h"
#include "choose/thresholds.h"
#include "core/token_bytes.h"
#include "cost/model.h"
#include "cost/times.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/geometry.h"
#include "cuda/sm90/kernels/gqa_128/takes.h"
#include "plan/geometries.h"

namespace flashlatent::choose {

namespace {

using cost::Cut;
using cost::Source;
using cost::Tile;
using gqa_128::kSegmentTileRows;

constexpr cost::Kernel kKernel = cost::Kernel::kGqa128Split;
constexpr int kRowsAtOnce = 8;  // rows of a tile that a CTA of the combine step merges at once

/// Row tiles of a KV head, as few as possible.
int row_tiles_of(const DecodeProblem& problem) {
  return (problem.rows_per_kv_head() + kSegmentTileRows - 1) / kSegmentTileRows;
}

/// Rows of a tile, if all tiles are equal: with smaller tiles the combine step has fewer rows to merge.
int tile_rows_of(const DecodeProblem& problem) {
  const int tiles = row_tiles_of(problem);
  const int rows = (problem.rows_per_kv_head() + tiles - 1) / tiles;
  return (rows + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
}

/// The time in which the loading warpgroup converts a block of e4m3 keys and values; 0 for other caches.
std::int32_t time_to_convert(const DecodeProblem& problem, int block_tokens,
                             const schedule::Workers& workers) {
  if (problem.cache.format != KvFormat::kE4m3) return 0;
  const cost::Costs costs = problem.cache.qk_dim <= 64 ? cost::of(kKernel, {Source::kE4m3, Tile::kDim64})
                                                       : cost::of(kKernel, {Source::kE4m3, Tile::kDim128});
  return costs.on(workers).per_block * block_tokens / 64;
}

double block_bytes(const DecodeProblem& problem, int block_tokens) {
  return static_cast<double>(block_tokens * head_token_bytes(problem.cache));
}

/// The least time of a block of `block_tokens` tokens, however fast memory is.
std::int32_t least_of_block(int dim, int block_tokens, const schedule::Workers& workers) {
  const cost::Costs costs = dim <= 64    ? cost::of(kKernel, Tile::kDim64)
                            : dim <= 128 ? cost::of(kKernel, Tile::kDim128)
                                         : cost::of(kKernel, Tile::kDim256);
  return costs.on(workers).per_block * block_tokens / 64;
}

/// A block takes as long as its bytes or its products. The plan counts all blocks of a request for each of
/// several row tiles, also those that causal rows do not see. So it does not balance prompts, which take
/// longer in proportion to such blocks.
schedule::CostModel costs_of(const DecodeProblem& problem, int block_tokens,
                             const schedule::Workers& workers) {
  schedule::CostModel costs =
      cost::by_memory(cost::of(kKernel, Cut::kByMemory), block_bytes(problem, block_tokens), workers);
  costs.per_block = std::max({costs.per_block, least_of_block(problem.cache.qk_dim, block_tokens, workers),
                              time_to_convert(problem, block_tokens, workers)});
  if (row_tiles_of(problem) == 1) return costs;
  const schedule::CostModel of_tiles = cost::of(kKernel, Tile::kTiles).on(workers);
  const double reach = std::max(cuda::reach_of(problem), 1);
  const double unseen = problem.options.causal ? std::min(problem.query.tokens / reach, 1.0) : 0;
  const double products = of_tiles.per_block * (problem.cache.qk_dim / 128.0) * (block_tokens / 64.0);
  costs.per_block = std::max(costs.per_block, static_cast<std::int32_t>(products));
  costs.per_block = static_cast<std::int32_t>(costs.per_block * (1 + unseen));
  return costs;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = tile_rows_of(problem);
  g.block_tokens = gqa_128::block_tokens_of(gqa_128::key_of(problem, gqa_128::Kind::kSegments)->dim,
                                            gqa_128::Kind::kSegments);
  g.max_tokens = cuda::tokens_in_window(problem, g.block_tokens);
  if (problem.options.batch_invariant) schedule::fix_splits(g, kFixedSplitTokens / g.block_tokens);
  g.cost = costs_of(problem, g.block_tokens, workers);
  schedule::set_workers(g, row_tiles_of(problem) * problem.cache.heads, workers);
  constexpr cost::Costs kShares = cost::of(kKernel, Cut::kShares);
  return schedule::with_shares_merged_in(g, kShares.on(workers).per_merge);
}

schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  if (row_tiles_of(problem) > 1) return cost::as_cut(g);
  const int dim = problem.cache.qk_dim;
  const double bytes = block_bytes(problem, g.block_tokens);
  // With d 128 the bytes take as long as the rest.
  const auto least_of_64 = [&](const cost::Costs& costs) {
    return costs.on(workers).per_block * (g.block_tokens / 64.0);
  };
  const double least = dim <= 64    ? least_of_64(cost::of(kKernel, {Cut::kTimes, Tile::kDim64}))
                       : dim <= 128 ? 0
                                    : least_of_64(cost::of(kKernel, Tile::kDim256));
  cost::ItemTimes times = cost::ItemTimes::of(cost::of(kKernel, Cut::kTimes), workers);
  times.lone_share = cost::of(kKernel, Cut::kTimes).lone_share_on(workers);
  times.block = std::max(bytes / (cost::kRates.share / 10.0) * workers.memory, least);
  times.block_alone = times.block_near =
      std::max(bytes / (cost::kRates.most / 10.0) * workers.clock, cost::kLeastAlone * least);
  return cost::of_line(g, times, cost::Items::kFaster, g.parts);
}

}  // namespace

const Cutter kGqa128Split = {.kernel = cuda::kGqa128SplitKernel, .geometry = geometry, .times = times};

}  // namespace flashlatent::choose
