// What a cached token takes, in bytes.
#pragma once

#include <cstdint>

#include "core/latent_format.h"
#include "flashlatent/problem.h"

namespace flashlatent {

/// Bytes of a token in a cache: of all KV heads, keys and values, with scales that lie in the cache. Gaps
/// between tokens and pages do not count. With an extra cache: of a token of either.
inline std::int64_t token_bytes(const DecodeProblem::Cache& cache) {
  const std::int64_t element = cache.format == KvFormat::kPlain ? 2 : 1, heads = cache.heads;
  if (cache.layout != KvLayout::kLatent) return element * heads * (cache.qk_dim + cache.v_dim);
  return element * heads * last_extent(cache.format, cache.qk_dim);
}

}  // namespace flashlatent
