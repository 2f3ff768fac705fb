#include "cuda/prefill/choice.h"

#include <algorithm>
#include <cmath>

#include "core/message.h"
#include "cuda/common/geometry.h"
#include "cuda/common/if_compiled.h"
#include "cuda/common/prefix_units.h"
#include "cuda/cuda_backend.h"
#include "plan/host_plan.h"

namespace flashlatent::prefill {

namespace {
constexpr int kDims[] = {64, 128, 256};  // of instances
}

const InstanceKey* key_of(const DecodeProblem& problem, Kind kind) {
  const auto* dim =
      std::find_if(std::begin(kDims), std::end(kDims), [&](int d) { return d >= problem.cache.qk_dim; });
  if (dim == std::end(kDims)) return nullptr;
  const InstanceKey key{problem.cache.dtype, *dim, kind};
  for (const auto* list : {&kBf16Keys, &kFp16Keys}) {
    const auto* found = std::find(list->begin(), list->end(), key);
    if (found != list->end()) return found;
  }
  return nullptr;
}

const InstanceKey* key_of(const DecodeProblem& problem) {
  const auto& options = problem.options;
  return key_of(problem,
                options.separate.soft_cap != 0 || options.separate.alibi ? Kind::kTransforms : Kind::kPlain);
}

}  // namespace flashlatent::prefill

namespace flashlatent::cuda {

namespace {

using prefill::block_tokens_of;
using prefill::key_of;
using prefill::Kind;
using prefill::kSharedTileRows;
using prefill::tile_rows_of;

constexpr int kLeastRows =
    17;  // of a KV head: of d up to 128 `paged` has 16 in a tile, and reads its tokens once
constexpr std::int64_t kMostTiles = 1 << 22;
constexpr int kLeastBoxTokens = 8;  // eight rows are an atom of the swizzle
// Nanoseconds a block, in proportion to d; a tile's begin and end.
constexpr int kBlockCost64 = 1200;
constexpr int kTileCost = 8000;
// The same without a mask, of 128 rows that share a prefix.
constexpr int kSharedBlockCost64 = 1000;
/// Of the cache and the scores.
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

/// The kernel walks tiles by itself and splits nothing: to the plan there is one part. The estimate is what
/// counts, of whole waves of tiles.
schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  const prefill::InstanceKey& key = *key_of(problem);
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = tile_rows_of(key);
  g.block_tokens = block_tokens_of(key.dim);
  g.max_tokens = reach_of(problem);
  g.lanes = row_tiles_of(problem) * problem.cache.heads;
  int block_cost = kBlockCost64 * key.dim / 64 * block_tokens_of(key.dim) / 128;
  int tile_cost = kTileCost;
  if (problem.options.batch_invariant) {
    // One split is all of a request, whatever the batch.
    schedule::fix_splits(g, std::max(schedule::max_blocks(g), 1));
    // What `paged` compares it with is one of its splits, 2,048 tokens.
    block_cost = std::max(block_cost * (2048 / g.block_tokens) / g.fixed_split, 1);
  } else if (g.requests > 0) {
    const double tiles = static_cast<double>(g.requests) * g.lanes;
    const double waves = std::ceil(tiles / std::max(workers, 1)) / g.requests;
    auto share = [&](int cost) { return std::max(static_cast<int>(std::min(cost * waves, 1e9)), 1); };
    block_cost = share(block_cost);
    tile_cost = share(tile_cost);
  }
  g.cost = {.per_block = block_cost, .per_split = tile_cost};
  return g;
}

/// What the CTAs count their jobs in.
std::size_t workspace_bytes(const DecodeProblem&, const schedule::Geometry&) {
  return sizeof(std::int32_t);
}

}  // namespace

const DecodeKernel kPrefillKernel = {
    .name = "prefill",
    .backend = Backend::kCuda,
    .takes =
        "separate keys and values of bf16 or fp16, d up to 256, pages of a multiple of 8 tokens, more "
        "than 16 query rows a KV head",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(prefill::launch),
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

prefix::Shape prefix_units_shape(const DecodeProblem& problem, int workers) {
  const prefill::InstanceKey& key = *key_of(problem, Kind::kShared);
  const double head_elements = static_cast<double>(problem.cache.heads) * problem.cache.qk_dim;
  return {.requests = problem.query.batch,
          .request_rows = problem.rows_per_kv_head(),
          .kv_heads = problem.cache.heads,
          .max_tokens = reach_of(problem),
          .tile_rows = kSharedTileRows,
          .block_tokens = block_tokens_of(key.dim),
          .workers = workers,
          // Alone, requests read what they share mostly from L2, at 9 TB/s (64 x 8,192 tokens: 0.246 ms); a
          // tile's products at 450 TFLOP/s. With groups a call begins and ends 16 us later, and their results
          // are written, read and merged.
          .read_cost = std::max(1, static_cast<int>(4 * head_elements / 9)),
          .tile_cost = std::max(1, static_cast<int>(4 * kSharedTileRows * head_elements / 450)),
          .member_cost = 200'000,
          .call_cost = 16'000'000,
          .unit_block_cost = kSharedBlockCost64 * key.dim / 64 * block_tokens_of(key.dim) / 128};
}

}  // namespace flashlatent::cuda
