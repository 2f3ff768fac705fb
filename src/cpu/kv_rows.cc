#include "cpu/kv_rows.h"

#include <algorithm>
#include <cstring>

#include "core/formats/formats.h"
#include "cpu/rows.h"

namespace flashlatent::cpu {

namespace {

std::uint16_t* halves(std::uint8_t* bytes) {
  return reinterpret_cast<std::uint16_t*>(bytes);
}

/// Rows stay in the cache; a latent value is the begin of its key.
void point_at(const Tokens& tokens, bool latent, Block& block) {
  block.tokens = tokens.count;
  for (int t = 0; t < tokens.count; ++t) {
    block.rows[t] = reinterpret_cast<const std::uint16_t*>(tokens.rows[t]);
    block.values[t] = latent ? block.rows[t] : reinterpret_cast<const std::uint16_t*>(tokens.values[t]);
  }
}

void fetch_lines(const std::uint8_t* row, int bytes) {
  for (int i = 0; i < bytes; i += 64) fetch_ahead(row + i);
}

}  // namespace

std::size_t KvRows::scratch_bytes(const DecodeProblem::Cache& cache) {
  const std::size_t elements = std::size_t{kBlockTokens} * (cache.qk_dim + cache.v_dim);
  const bool packed = cache.layout == KvLayout::kPacked;
  if (format_of(cache).plain()) return packed ? elements * sizeof(std::uint16_t) : 0;
  if (cache.layout == KvLayout::kLatent) return kBlockTokens * cache.qk_dim * sizeof(std::uint16_t);
  return elements * (sizeof(std::uint16_t) + (packed ? 1 : 0));  // packed, the codes come first
}

void KvRows::fetch(const Tokens& tokens, const Tokens& next, std::uint8_t* scratch, Block& block,
                   Block& ahead) const {
  block.tokens = tokens.count;
  ahead.tokens = 0;
  const bool latent = cache_.layout == KvLayout::kLatent;
  if (scratch_bytes(cache_) == 0) {
    point_at(tokens, latent, block);
    point_at(next, latent, ahead);
  } else if (latent) {
    dequantise(tokens, next, scratch, block);
  } else {
    convert(tokens, next, scratch, block);
  }
}

/// For caches of bytes. The scale of an e4m3 cache is applied elsewhere.
void KvRows::dequantise(const Tokens& tokens, const Tokens& next, std::uint8_t* scratch, Block& block) const {
  const LatentFormat &format = *tokens.format, &next_format = *next.format;
  const bool rope = cache_.qk_dim != format.dim_without_rope;
  const bool codes = format.scales == ScaleKind::kOfCache;
  const int next_bytes = next_format.is_record() ? next_format.read_bytes(cache_.qk_dim) : cache_.qk_dim;
  for (int t = 0; t < tokens.count; ++t) {
    if (t < next.count) {
      fetch_lines(next.rows[t], next_bytes);
      if (next_format.apart()) fetch_ahead(next.scales[t]);
    }
    std::uint16_t* row = halves(scratch) + t * cache_.qk_dim;
    if (codes) {
      expand_e4m3(tokens.rows[t], cache_.qk_dim, Dtype::kBF16, row);
    } else {
      dequantise_token(format, {tokens.rows[t], tokens.scales[t]}, rope, Dtype::kBF16, row);
    }
    block.rows[t] = block.values[t] = row;
  }
}

/// For packed caches, e4m3 ones, and both at once.
void KvRows::convert(const Tokens& tokens, const Tokens& next, std::uint8_t* scratch, Block& block) const {
  const bool fp8 = cache_.format == KvFormat::kE4m3;
  const bool packed = cache_.layout == KvLayout::kPacked;
  const std::int64_t k = cache_.qk_dim, v = cache_.v_dim;
  std::uint16_t* keys = halves(scratch);
  std::uint16_t* values = keys + kBlockTokens * k;
  auto* key_codes = reinterpret_cast<std::uint8_t*>(values + kBlockTokens * v);
  std::uint8_t* value_codes = key_codes + kBlockTokens * k;
  if (packed && fp8) gather<std::uint8_t>(tokens, key_codes, value_codes);
  if (packed && !fp8) gather<std::uint16_t>(tokens, scratch, reinterpret_cast<std::uint8_t*>(values));
  for (int t = 0; t < tokens.count; ++t, keys += k, values += v) {
    block.rows[t] = keys;
    block.values[t] = values;
    if (!fp8) continue;
    if (!packed && t < next.count) {
      fetch_lines(next.rows[t], cache_.qk_dim);
      fetch_lines(next.values[t], cache_.v_dim);
    }
    expand_e4m3(packed ? key_codes + t * k : tokens.rows[t], cache_.qk_dim, cache_.dtype, keys);
    expand_e4m3(packed ? value_codes + t * v : tokens.values[t], cache_.v_dim, cache_.dtype, values);
  }
}

/// Packed keys and values as rows. In a page the tokens lie side by side: 16 bytes of a key each, one element
/// of a value each.
template <class Element>
void KvRows::gather(const Tokens& tokens, std::uint8_t* keys, std::uint8_t* values) const {
  constexpr int kChunk = 16 / sizeof(Element);
  const std::int64_t chunk_stride = key_cache_.strides[2], stride = value_cache_.strides[2];
  auto* key = reinterpret_cast<Element*>(keys);
  for (int t = 0; t < tokens.count; ++t, key += cache_.qk_dim) {
    const auto* from = reinterpret_cast<const Element*>(tokens.rows[t]);
    for (int d = 0; d < cache_.qk_dim; d += kChunk, from += chunk_stride) {
      std::memcpy(key + d, from, kChunk * sizeof(Element));
    }
  }
  auto* to = reinterpret_cast<Element*>(values);
  // columns at a time, so that their lines stay in the first-level cache from token to token
  constexpr int kColumns = 16;
  for (int begin = 0; begin < cache_.v_dim; begin += kColumns) {
    const int end = std::min(begin + kColumns, cache_.v_dim);
    for (int t = 0; t < tokens.count; ++t) {
      const auto* from = reinterpret_cast<const Element*>(tokens.values[t]);
      for (int d = begin; d < end; ++d) to[t * cache_.v_dim + d] = from[d * stride];
    }
  }
}

}  // namespace flashlatent::cpu
