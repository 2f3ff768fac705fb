#include "cuda/sm90/kernels/gqa_128/choice.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/message.h"
#include "cost/model.h"
#include "cost/times.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/geometry.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/prefix_units.h"
#include "plan/host_plan.h"

namespace flashlatent::gqa_128 {

namespace {
constexpr int kDims[] = {64, 128, 256};  // of instances
constexpr int kLeastBoxTokens = 8;       // eight rows are an atom of the swizzle
}  // namespace

const InstanceKey* key_of(const DecodeProblem& problem, Kind kind) {
  const auto* dim =
      std::find_if(std::begin(kDims), std::end(kDims), [&](int d) { return d >= problem.cache.qk_dim; });
  if (dim == std::end(kDims)) return nullptr;
  const InstanceKey key{problem.cache.dtype, *dim, kind};
  using Keys = std::span<const InstanceKey>;
  for (const Keys keys : {Keys(kBf16Keys), Keys(kFp16Keys), Keys(kBf16SegmentKeys), Keys(kFp16SegmentKeys)}) {
    const auto found = std::find(keys.begin(), keys.end(), key);
    if (found != keys.end()) return &*found;
  }
  return nullptr;
}

const InstanceKey* key_of(const DecodeProblem& problem) {
  const auto& options = problem.options;
  return key_of(problem,
                options.separate.soft_cap != 0 || options.separate.alibi ? Kind::kTransforms : Kind::kPlain);
}

std::optional<std::string> declines_cache(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  if (cache.layout != KvLayout::kSeparate) {
    return message("the cache is ", to_string(cache.layout), "; separate keys and values are accepted");
  }
  if (cache.format != KvFormat::kPlain) {
    return message("the cache is ", to_string(cache.format), "; bf16 and fp16 are accepted");
  }
  if (cache.qk_dim != cache.v_dim) {
    return message("qk_dim is ", cache.qk_dim, " and v_dim ", cache.v_dim, "; equal ones are accepted");
  }
  if (cache.qk_dim % 8 != 0 || key_of(problem) == nullptr) {
    return message("d is ", cache.qk_dim, "; multiples of 8 up to 256 are accepted");
  }
  if (cache.page_size % kLeastBoxTokens != 0) {
    return message("page_size is ", cache.page_size, "; multiples of ", kLeastBoxTokens, " are accepted");
  }
  return std::nullopt;
}

}  // namespace flashlatent::gqa_128

namespace flashlatent::cuda {

namespace {

using gqa_128::block_tokens_of;
using gqa_128::declines_cache;
using gqa_128::key_of;
using gqa_128::Kind;
using gqa_128::kSharedTileRows;
using gqa_128::tile_rows_of;

/// Query rows of a KV head. gqa_16 has up to 16 in a tile, and then reads tokens once (d up to 128).
constexpr int kLeastRows = 17;
constexpr std::int64_t kMostTiles = 1 << 22;
constexpr cost::Costs kCost = cost::of(cost::Kernel::kGqa128, cost::Situation::kRows64);

int row_tiles_of(const DecodeProblem& problem) {
  const int rows = tile_rows_of(*key_of(problem));
  return (problem.rows_per_kv_head() + rows - 1) / rows;
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (std::optional<std::string> reason = declines_cache(problem)) return reason;
  if (problem.rows_per_kv_head() < kLeastRows) {
    return message("a KV head has ", problem.rows_per_kv_head(), " query rows; at least ", kLeastRows,
                   " are accepted");
  }
  const std::int64_t tiles = std::int64_t{row_tiles_of(problem)} * problem.cache.heads;
  if (tiles * problem.query.batch > kMostTiles) {
    return message("q has ", tiles * problem.query.batch, " tiles of ", tile_rows_of(*key_of(problem)),
                   " rows; at most ", kMostTiles, " are accepted");
  }
  return std::nullopt;
}

/// The kernel walks tiles by itself and splits nothing: the plan has one part. The geometry serves the
/// estimate, of whole waves of tiles.
schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const gqa_128::InstanceKey& key = *key_of(problem);
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = tile_rows_of(key);
  g.block_tokens = block_tokens_of(key.dim, key.kind);
  g.max_tokens = reach_of(problem);
  g.lanes = row_tiles_of(problem) * problem.cache.heads;
  // With batch_invariant a split is all of a request, whatever the batch.
  if (problem.options.batch_invariant) schedule::fix_splits(g, std::max(schedule::max_blocks(g), 1));
  g.cost = cost::of_waves(kCost, g, key.dim, workers);
  return g;
}

/// CTAs take tiles one after another and split none. Where lengths vary the longest ends up to a tile later.
schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  if (row_tiles_of(problem) > 1) return cost::as_cut(g);
  constexpr cost::Costs kTimes = cost::of(cost::Kernel::kGqa128, cost::Situation::kTimes);
  const double tiles = static_cast<double>(g.requests) * g.lanes, at_once = std::max<int>(workers, 1);
  const double waves = std::ceil(tiles / at_once), last = tiles - (waves - 1) * at_once;
  const int dim = key_of(problem)->dim;
  const double alone = kTimes.on(workers).per_block * (g.block_tokens / 128.0) * std::max(dim / 128.0, 1.0);
  const double memory =
      4.0 * g.block_tokens * problem.cache.qk_dim / (cost::kRates.share / 10.0) * workers.memory;
  const double blocks = schedule::max_blocks(g) *
                        ((waves - 1) * std::max(memory, alone) + std::max(memory * last / at_once, alone));
  const schedule::CostModel costs = kTimes.on(workers);
  const double shorter = g.requests < 2 ? 1 : std::min(1.0, cost::kMeanOfLongest + 1 / waves);
  const double call = costs.per_call + waves * costs.per_split;
  return {std::llround(call + blocks), std::llround(call + shorter * blocks)};
}

/// A counter of jobs.
std::size_t workspace_bytes(const DecodeProblem&, const schedule::Geometry&) {
  return sizeof(std::int32_t);
}

}  // namespace

const DecodeKernel kGqa128Kernel = {
    .name = "gqa_128",
    .backend = Backend::kCuda,
    .takes =
        "separate keys and values of bf16 or fp16, d up to 256, pages of a multiple of 8 tokens, more "
        "than 16 query rows a KV head",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(gqa_128::launch),
    .times = times,
};

std::optional<std::string> declines_prefix_units(const DecodeProblem& problem) {
  if (std::optional<std::string> reason = declines_cache(problem)) return reason;
  if (problem.options.separate.soft_cap != 0) {
    return message("soft_cap is ", problem.options.separate.soft_cap, "; 0 is accepted");
  }
  if (problem.options.separate.alibi) return "alibi is true; false is accepted";
  const int rows = problem.rows_per_kv_head();
  if (2 * rows <= kSharedTileRows) return std::nullopt;
  return message("a request has ", rows, " query rows a KV head; at most ", kSharedTileRows / 2,
                 " are accepted");
}

prefix::Shape prefix_units_shape(const DecodeProblem& problem, const schedule::Workers& workers) {
  const gqa_128::InstanceKey& key = *key_of(problem, Kind::kShared);
  const double head_elements = static_cast<double>(problem.cache.heads) * problem.cache.qk_dim;
  const int block_tokens = block_tokens_of(key.dim, key.kind);
  const cost::PrefixCosts costs =
      cost::of_prefixes(head_elements, kSharedTileRows, key.dim, block_tokens, workers);
  return {.requests = problem.query.batch,
          .request_rows = problem.rows_per_kv_head(),
          .kv_heads = problem.cache.heads,
          .max_tokens = reach_of(problem),
          .tile_rows = kSharedTileRows,
          .block_tokens = block_tokens,
          .workers = workers,
          .read_cost = costs.read,
          .tile_cost = costs.tile,
          .member_cost = costs.member,
          .call_cost = costs.call,
          .unit_block_cost = costs.unit_block};
}

}  // namespace flashlatent::cuda
