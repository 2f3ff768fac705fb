// gqa_128, and its units of shared prefixes.
#include <algorithm>
#include <cmath>

#include "choose/cutters.h"
#include "choose/prefix_units.h"
#include "core/token_bytes.h"
#include "cost/model.h"
#include "cost/times.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/geometry.h"
#include "cuda/sm90/kernels/gqa_128/takes.h"
#include "plan/schedule.h"

namespace flashlatent::choose {

namespace {

using gqa_128::block_tokens_of;
using gqa_128::key_of;
using gqa_128::Kind;
using gqa_128::kSharedTileRows;
using gqa_128::row_tiles_of;
using gqa_128::tile_rows_of;

constexpr cost::Costs kCost = cost::of(cost::Kernel::kGqa128, cost::Tile::kRows64);
constexpr cost::Costs kE4m3Cost = cost::of(cost::Kernel::kGqa128, {cost::Source::kE4m3, cost::Tile::kDim64});

/// The kernel walks tiles by itself and splits nothing: the plan has one part. The geometry is for the
/// estimate, which counts whole waves of tiles.
schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const gqa_128::InstanceKey& key = *key_of(problem);
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = tile_rows_of(key);
  g.block_tokens = block_tokens_of(key.dim, key.kind);
  g.max_tokens = cuda::reach_of(problem);
  g.lanes = row_tiles_of(problem) * problem.cache.heads;
  // With batch_invariant a split is a whole request, for every batch.
  if (problem.options.batch_invariant) schedule::fix_splits(g, std::max(schedule::max_blocks(g), 1));
  g.cost = cost::of_waves(key.e4m3 ? kE4m3Cost : kCost, g, key.dim, workers);
  return g;
}

/// CTAs take tiles one after another and split none. If lengths vary, the longest request ends up to a tile
/// later.
schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  if (row_tiles_of(problem) > 1) return cost::as_cut(g);
  constexpr cost::Costs kTimes = cost::of(cost::Kernel::kGqa128, cost::Cut::kTimes);
  const double tiles = static_cast<double>(g.requests) * g.lanes, at_once = std::max<int>(workers, 1);
  const double waves = std::ceil(tiles / at_once), last = tiles - (waves - 1) * at_once;
  const int dim = key_of(problem)->dim;
  const double alone = kTimes.on(workers).per_block * (g.block_tokens / 128.0) * std::max(dim / 128.0, 1.0);
  const double memory = static_cast<double>(g.block_tokens * head_token_bytes(problem.cache)) /
                        (cost::kRates.share / 10.0) * workers.memory;
  const double blocks = schedule::max_blocks(g) *
                        ((waves - 1) * std::max(memory, alone) + std::max(memory * last / at_once, alone));
  const schedule::CostModel costs = kTimes.on(workers);
  const double shorter = g.requests < 2 ? 1 : std::min(1.0, cost::kMeanOfLongest + 1 / waves);
  const double call = costs.per_call + waves * costs.per_split;
  return {std::llround(call + blocks), std::llround(call + shorter * blocks)};
}

}  // namespace

const Cutter kGqa128 = {.kernel = cuda::kGqa128Kernel, .geometry = geometry, .times = times};

prefix::Shape prefix_units_shape(const DecodeProblem& problem, const schedule::Workers& workers) {
  const gqa_128::InstanceKey& key = *key_of(problem, Kind::kShared);
  const double head_elements = static_cast<double>(problem.cache.heads) * problem.cache.qk_dim;
  const int block_tokens = block_tokens_of(key.dim, key.kind);
  const cost::PrefixCosts costs =
      cost::of_prefixes(head_elements, kSharedTileRows, key.dim, block_tokens, workers);
  return {.requests = problem.query.batch,
          .request_rows = problem.rows_per_kv_head(),
          .kv_heads = problem.cache.heads,
          .max_tokens = cuda::reach_of(problem),
          .tile_rows = kSharedTileRows,
          .block_tokens = block_tokens,
          .workers = workers,
          .read_cost = costs.read,
          .tile_cost = costs.tile,
          .member_cost = costs.member,
          .call_cost = costs.call,
          .unit_block_cost = costs.unit_block};
}

}  // namespace flashlatent::choose
