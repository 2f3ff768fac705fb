// What one decode call computes, as shapes and options: all that size queries and kernel choice need.
#pragma once

#include <string>

#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// Dense decode of a batch out of a paged KV cache. For request i with L cached tokens, query token t and
/// query head h of KV head k = h / (heads / kv_heads):
///   S = softmax_scale * q . K^T over tokens [0, L), or with `causal` over [0, L - s_q + t + 1);
///   out = softmax(S) . V;  lse = ln sum exp S.
/// V is the first `v_dim` elements of the cached row (MLA, DeepSeek-V2, arXiv 2405.04434 after weight
/// absorption).
struct DecodeProblem {
  struct Query {
    int batch = 1;        ///< Requests; a request of length 0 is legal padding.
    int tokens = 1;       ///< s_q: query tokens a request; with `ragged` the most that any request has.
    int heads = 1;        ///< h_q, a multiple of Cache::heads.
    bool ragged = false;  ///< q is packed (total tokens, heads, qk_dim) and cu_seqlens_q says where.
  } query;

  struct Cache {
    Dtype dtype = Dtype::kBF16;  ///< kBF16 or kF16; q and out have the same.
    int heads = 1;               ///< h_kv.
    int qk_dim = 576;            ///< Elements of a cached row that meet q.
    int v_dim = 512;             ///< Its first elements that are the value.
    int page_size = 64;          ///< Tokens a page.
    int max_pages = 0;           ///< Columns of the page table: the most pages that a request has.
  } cache;

  struct Options {
    float softmax_scale = 1.0F;  ///< Finite. Often 1/sqrt(192) for DeepSeek-V3.
    bool causal = false;
    bool attn_sink = false;        ///< One extra fp32 logit a head, see DecodeInputs::attn_sink.
    bool batch_invariant = false;  ///< A request's bits do not depend on its batch-mates.
  } options;

  /// Query rows (token x head) that share one KV head.
  int rows_per_kv_head() const { return query.tokens * (query.heads / cache.heads); }
};

/// "decode b=128 s_q=1 h_q=128 h_kv=1 d=576/512 bf16 page=64x65 causal".
std::string to_string(const DecodeProblem& problem);

/// Is every field in its range? The message names the field, its value and the range.
Status validate(const DecodeProblem& problem);

}  // namespace flashlatent
