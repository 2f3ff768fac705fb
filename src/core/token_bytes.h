// What a cached token takes, in bytes.
#pragma once

#include <cstdint>

#include "core/formats/formats.h"
#include "flashlatent/problem.h"

namespace flashlatent {

/// Bytes of a token in a latent cache of this format: of all KV heads, with scales that lie in the cache.
/// Gaps between tokens and pages do not count.
inline std::int64_t token_bytes(const DecodeProblem::Cache& cache, const LatentFormat& format) {
  if (format.is_record()) return format.token_bytes();
  return std::int64_t{format.plain() ? 2 : 1} * cache.heads * cache.qk_dim;
}

/// Bytes of a token in the first cache, keys and values.
inline std::int64_t token_bytes(const DecodeProblem::Cache& cache) {
  if (cache.layout == KvLayout::kLatent) return token_bytes(cache, format_of(cache));
  return std::int64_t{cache.format == KvFormat::kPlain ? 2 : 1} * cache.heads * (cache.qk_dim + cache.v_dim);
}

/// The same of one KV head, of separate keys and values.
inline std::int64_t head_token_bytes(const DecodeProblem::Cache& cache) {
  return token_bytes(cache) / cache.heads;
}

/// Bytes of a token in the extra cache.
inline std::int64_t extra_token_bytes(const DecodeProblem::Cache& cache) {
  return token_bytes(cache, extra_format_of(cache));
}

}  // namespace flashlatent
