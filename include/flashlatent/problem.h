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
    int batch = 1;        ///< Requests, 0 to 2^20; a request of length 0 is legal padding.
    int tokens = 1;       ///< s_q, 1 to 2^20: query tokens a request; ragged: the most that any request has.
    int heads = 1;        ///< h_q, 1 to 65,536, a multiple of Cache::heads; tokens * heads is at most 2^30.
    bool ragged = false;  ///< q is packed (total tokens, heads, qk_dim) and cu_seqlens_q says where.
  } query;

  struct Cache {
    Dtype dtype = Dtype::kBF16;  ///< kBF16 or kF16; q and out have the same.
    int heads = 1;               ///< h_kv.
    int qk_dim = 576;            ///< Elements of a cached row, all of which meet q; 1 to 4,096.
    int v_dim = 512;             ///< Its first elements that are the value; 1 to qk_dim.
    int page_size = 64;          ///< Tokens a page, 1 to 2^20.
    int max_pages = 0;           ///< Columns of the page table: the most pages that a request has; 0 to 2^30.
  } cache;

  struct Options {
    float softmax_scale = 1.0F;    ///< Finite. Often 1/sqrt(192) for DeepSeek-V3.
    bool causal = false;           ///< The last query token sees all L tokens, each one before it one less.
    bool attn_sink = false;        ///< One extra fp32 logit a head, see DecodeInputs::attn_sink.
    bool batch_invariant = false;  ///< A request's bits do not depend on its batch-mates; costs some balance.
  } options;

  /// Query rows (token x head) that share one KV head.
  int rows_per_kv_head() const { return query.tokens * (query.heads / cache.heads); }
};

/// "decode b=128 s_q=1 h_q=128 h_kv=1 d=576/512 bf16 page=64x65 causal".
std::string to_string(const DecodeProblem& problem);

/// Is every field in its range? kInvalidArgument names the field, its value and the range. Whether a kernel
/// takes the problem is for plan_bytes() and explain() to say.
Status validate(const DecodeProblem& problem);

}  // namespace flashlatent
