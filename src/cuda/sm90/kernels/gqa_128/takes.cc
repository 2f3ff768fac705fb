#include "cuda/sm90/kernels/gqa_128/takes.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/geometry.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/prefix_units.h"

namespace flashlatent::gqa_128 {

namespace {
constexpr int kDims[] = {64, 128, 256};  // of instances
constexpr int kLeastBoxTokens = 8;       // eight rows are an atom of the swizzle
}  // namespace

const InstanceKey* key_of(const DecodeProblem& problem, Kind kind) {
  const auto* dim =
      std::find_if(std::begin(kDims), std::end(kDims), [&](int d) { return d >= problem.cache.qk_dim; });
  if (dim == std::end(kDims)) return nullptr;
  const InstanceKey key{problem.cache.dtype, *dim, kind, problem.cache.format == KvFormat::kE4m3};
  using Keys = std::span<const InstanceKey>;
  for (const Keys keys : {Keys(kBf16Keys), Keys(kFp16Keys), Keys(kBf16SegmentKeys), Keys(kFp16SegmentKeys),
                          Keys(kBf16E4m3Keys), Keys(kFp16E4m3Keys)}) {
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

int row_tiles_of(const DecodeProblem& problem) {
  const int rows = tile_rows_of(*key_of(problem));
  return (problem.rows_per_kv_head() + rows - 1) / rows;
}

std::optional<std::string> declines_cache(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  if (cache.layout != KvLayout::kSeparate) {
    return message("the cache is ", to_string(cache.layout), "; separate keys and values are accepted");
  }
  if (cache.qk_dim != cache.v_dim) {
    return message("qk_dim is ", cache.qk_dim, " and v_dim ", cache.v_dim, "; equal ones are accepted");
  }
  const bool e4m3 = cache.format == KvFormat::kE4m3;
  const int unit = e4m3 ? 16 : 8;  // strides are multiples of 16 bytes
  if (cache.qk_dim % unit != 0 || key_of(problem) == nullptr) {
    return message("d is ", cache.qk_dim, "; multiples of ", unit, " up to ", e4m3 ? 128 : 256,
                   " are accepted");
  }
  if (cache.page_size % kLeastBoxTokens != 0) {
    return message("page_size is ", cache.page_size, "; multiples of ", kLeastBoxTokens, " are accepted");
  }
  return std::nullopt;
}

}  // namespace flashlatent::gqa_128

namespace flashlatent::cuda {

namespace {

using gqa_128::declines_cache;
using gqa_128::key_of;
using gqa_128::kSharedTileRows;
using gqa_128::row_tiles_of;
using gqa_128::tile_rows_of;

/// Query rows of a KV head. gqa_16 has up to 16 in a tile, and then reads tokens once (d up to 128).
constexpr int kLeastRows = 17;
constexpr std::int64_t kMostTiles = 1 << 22;

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

/// A counter of jobs.
std::size_t workspace_bytes(const DecodeProblem&, const schedule::Geometry&) {
  return sizeof(std::int32_t);
}

}  // namespace

const DecodeKernel kGqa128Kernel = {
    .name = "gqa_128",
    .architecture = Architecture::kSm90a,
    .takes =
        "separate keys and values of bf16 or fp16, d up to 256, or e4m3, d up to 128; pages of a multiple "
        "of 8 tokens, more than 16 query rows a KV head",
    .declines = declines,
    .workspace_bytes = workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(gqa_128::launch),
};

std::optional<std::string> declines_prefix_units(const DecodeProblem& problem) {
  if (std::optional<std::string> reason = declines_cache(problem)) return reason;
  if (problem.cache.format != KvFormat::kPlain) {
    return message("the cache is ", to_string(problem.cache.format), "; bf16 and fp16 are accepted");
  }
  if (problem.options.separate.soft_cap != 0) {
    return message("soft_cap is ", problem.options.separate.soft_cap, "; 0 is accepted");
  }
  if (problem.options.separate.alibi) return "alibi is true; false is accepted";
  const int rows = problem.rows_per_kv_head();
  if (2 * rows <= kSharedTileRows) return std::nullopt;
  return message("a request has ", rows, " query rows a KV head; at most ", kSharedTileRows / 2,
                 " are accepted");
}

}  // namespace flashlatent::cuda
