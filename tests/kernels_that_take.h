// Which CUDA kernel takes which problem, said once more for tests: one that declines what it should take is
// found out by this, not left out.
#pragma once

#include <string_view>

#include "flashlatent/problem.h"

namespace flashlatent {

inline bool should_take_latent(std::string_view kernel, const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  const int rows = problem.rows_per_kv_head();
  const bool usual_dims = cache.qk_dim == 576 && cache.v_dim == 512;
  const bool known_dims = usual_dims || (cache.qk_dim == 512 && cache.v_dim == 512) ||
                          (cache.qk_dim == 320 && cache.v_dim == 256);
  const bool invariant = problem.options.batch_invariant;
  const bool window = problem.options.window != 0;
  const bool records = cache.format == KvFormat::kMxfp8_528 || cache.format == KvFormat::kNvfp4_288 ||
                       cache.format == KvFormat::kFp8_528;
  const bool lists = cache.format == KvFormat::kFp8_584 || records || cache.extra.enabled || window ||
                     ((cache.format == KvFormat::kFp8_656 || cache.format == KvFormat::kE4m3) && !usual_dims);
  const bool e4m3 = cache.format == KvFormat::kE4m3;
  if (e4m3 && !lists) {  // with products and queries of all kinds
    if (kernel == "fp8_32") return rows <= 32;
    if (kernel == "fp8_16_team8") return !invariant;
    if (kernel == "fp8_64") return !problem.fp8_products() && !problem.query.e4m3;
  }
  if (e4m3 && problem.fp8_products()) return kernel == "mla_64_e4m3" && problem.options.softmax_scale > 0;
  if (e4m3 && problem.query.e4m3) return false;
  if (lists) {
    const int heads = problem.query.heads / cache.heads;
    if (kernel == "mla_64_pingpong") return cache.qk_dim == 512 && cache.v_dim == 512;
    const bool by_bytes =
        cache.format == KvFormat::kFp8_584 || (records && cache.format != KvFormat::kFp8_528);
    if (kernel == "fp8_64") return by_bytes && problem.sparse.enabled;
    if (kernel == "mla_64_team") {
      const auto blocks = [](int tokens) { return (tokens + 63) / 64; };
      const int all = blocks(problem.sparse.topk) + (cache.extra.enabled ? blocks(cache.extra.topk) : 0);
      return by_bytes && problem.sparse.enabled && !problem.query.ragged && !invariant &&
             (!cache.extra.enabled || cache.extra.indexed) && all <= 32;
    }
    if (kernel == "fp8_32") {
      return by_bytes && problem.sparse.enabled && (records || rows <= 32);
    }
    if (kernel != "mla_16_transposed") return false;
    if (cache.format == KvFormat::kFp8_656) return usual_dims;
    if (e4m3 && usual_dims) return true;
    return (e4m3 || records || cache.format == KvFormat::kFp8_584) && (window ? heads : rows) <= 16;
  }
  if (e4m3) return kernel == "mla_64_pingpong" || (kernel == "mla_16_transposed" && rows <= 16);
  if (cache.format == KvFormat::kFp8_656) {
    if (kernel == "fp8_32") return rows <= 32;
    if (kernel == "fp8_16_team8") return !invariant;
    if (kernel == "mla_16_transposed") return rows <= 16;
    return kernel == "fp8_64" || kernel == "mla_64_pingpong";
  }
  if (kernel == "mla_16_transposed") return usual_dims && rows <= 8;
  if (kernel == "mla_16") return known_dims && rows <= 16;
  if (kernel == "mla_16_team4" || kernel == "mla_16_team8") return known_dims && !invariant;
  if (kernel == "mla_16_team16") return usual_dims && !invariant;
  if (kernel == "mla_64_roles") {
    const bool placed = problem.options.shard.world > 1 && problem.options.causal && problem.query.tokens > 1;
    return usual_dims && !invariant && !placed;
  }
  return kernel == "mla_64_pingpong" && known_dims;
}

/// Fewer query rows a KV head are no prompt's.
inline constexpr int kLeastPromptRows = 17;

/// Should the kernel take separate or packed keys and values?
inline bool should_take_separate(std::string_view kernel, const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  const int unit = cache.format == KvFormat::kE4m3 ? 16 : 8;  // elements of 16 bytes
  const bool dims = cache.qk_dim == cache.v_dim && cache.qk_dim <= 256 && cache.qk_dim % unit == 0;
  const bool packed = cache.layout == KvLayout::kPacked;
  if (problem.options.separate.alibi && problem.options.shard.world > 1) return false;
  if (kernel == "gqa_16") return dims && (!packed || cache.page_size % unit == 0);
  const bool has_room = cache.format == KvFormat::kPlain || cache.qk_dim <= 128;  // for e4m3 beside tiles
  const bool boxes = dims && !packed && has_room && cache.page_size % 8 == 0;
  if (kernel == "gqa_128_split") return boxes;
  return kernel == "gqa_128" && boxes && problem.rows_per_kv_head() >= kLeastPromptRows;
}

/// Can requests attend to a prefix that they share by groups?
inline bool should_share_prefixes(std::string_view kernel, const DecodeProblem& problem) {
  const auto& [query, cache, sparse, options] = problem;
  return kernel == "gqa_16" && cache.layout == KvLayout::kSeparate && cache.format == KvFormat::kPlain &&
         cache.page_size % 8 == 0 && problem.rows_per_kv_head() <= 64 && !query.ragged && !sparse.enabled &&
         !options.batch_invariant && !options.separate.alibi && options.window == 0 &&
         options.separate.soft_cap == 0;
}

/// Should this kernel, by name, take the problem?
inline bool should_take(std::string_view kernel, const DecodeProblem& problem) {
  const bool shares = problem.options.prefix_sharing == PrefixSharing::kAlways;
  if (shares && !should_share_prefixes(kernel, problem)) return false;
  const bool latent = problem.cache.layout == KvLayout::kLatent;
  return latent ? should_take_latent(kernel, problem) : should_take_separate(kernel, problem);
}

}  // namespace flashlatent
