// What one decode call computes, as shapes and options: all that size queries and kernel choice need.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// How a KV cache holds a token.
enum class KvFormat : std::uint8_t {
  kPlain,    ///< qk_dim elements of the cache's dtype for each KV head.
  kFp8_656,  ///< 656 bytes: 512 e4m3, 4 fp32 scales (one for 128 elements), 64 bf16 that are not quantised
             ///< (RoPE). qk_dim 576, or 512 without RoPE, whose 128 bytes are never read then; one KV head.
             ///< docs/kv-cache-formats.md has the bytes.
  kE4m3,     ///< e4m3 elements, times an fp32 scale. Latent: one for the cache; RoPE too; qk_dim 576, or 512
             ///< without RoPE; one KV head. Keys and values apart: one for each, or one a KV head.
  kFp8_584,  ///< DeepSeek V4: 448 e4m3, 7 scale bytes (one for 64 elements), 64 bf16 that are not quantised
             ///< (RoPE), the scales of a page behind all its data. qk_dim and v_dim 512, one KV head.
};

/// "plain", "fp8_656", "e4m3", "fp8_584".
const char* to_string(KvFormat format);
/// The format of that name, or kInvalidArgument.
Result<KvFormat> kv_format_from_name(std::string_view name);

/// Where the keys and values of a token are.
enum class KvLayout : std::uint8_t {
  kLatent,    ///< One cache (pages, page_size, h_kv, qk_dim): a key, whose first v_dim elements are the value
              ///< (MLA).
  kSeparate,  ///< Keys and values, each (pages, page_size, h_kv, d) (MHA, GQA, MQA).
  kPacked,    ///< vLLM's: keys (pages, h_kv, d / x, page_size, x), x elements being 16 bytes, and values
              ///< (pages, h_kv, d, page_size).
};

/// "latent", "separate", "packed".
const char* to_string(KvLayout layout);

/// What numbers meet in the matrix products of an e4m3 latent cache. The other formats have kAuto alone.
enum class Products : std::uint8_t {
  kAuto,  ///< kFp8 where queries are e4m3, else kBf16.
  kBf16,  ///< Queries as they are, P rounded to bf16.
  kFp8,   ///< May be e4m3: bf16 queries are then rounded to it by a power of two for each row, P as well.
          ///< A kernel that is faster without rounds neither (docs/numerics.md).
};

/// "auto", "bf16", "fp8".
const char* to_string(Products products);
/// The choice of that name, or kInvalidArgument.
Result<Products> products_from_name(std::string_view name);

/// May requests that share their first pages attend to those together ("cascade")?
enum class PrefixSharing : std::uint8_t {
  kOff,     ///< No.
  kAuto,    ///< Where plan() is given the page table on the host, the kernel can, and it is estimated to pay.
  kAlways,  ///< The same wherever two requests share a block, whether it pays or not; a kernel that cannot
            ///< declines the problem.
};

/// "off", "auto", "always".
const char* to_string(PrefixSharing sharing);
/// The choice of that name, or kInvalidArgument.
Result<PrefixSharing> prefix_sharing_from_name(std::string_view name);

/// Options of KvLayout::kSeparate and kPacked only. Soft cap changes scores first, then ALiBi.
struct SeparateOptions {
  /// s -> soft_cap * tanh(s / soft_cap) (Gemma 2, arXiv 2408.00118). 0: none. Not negative.
  float soft_cap = 0;
  /// s -> s + slope * (t - (L - 1)) for token t (ALiBi, arXiv 2108.12409), see DecodeInputs::alibi_slopes.
  bool alibi = false;

  friend bool operator==(const SeparateOptions&, const SeparateOptions&) = default;
};

/// A second cache whose tokens query tokens attend to in the same softmax. Only with KvLayout::kLatent, by
/// indices without ragged queries. Format, dtype, heads and dimensions are those of the first cache; pages
/// are its own.
struct ExtraCache {
  bool enabled = false;
  bool indexed = false;  ///< Tokens are named by DecodeInputs::extra_indices; else by extra_block_table.
  int page_size = 64;    ///< Tokens a page, 1 to 2^20.
  int topk = 0;          ///< Indexed: indices of a query token, 0 to 2^30.
  int max_pages = 0;     ///< Not indexed: columns of extra_block_table, 0 to 2^30.

  friend bool operator==(const ExtraCache&, const ExtraCache&) = default;
};

/// Which tokens of its contexts a cache holds, where several ranks share them (context parallelism): runs of
/// `run` tokens go to the ranks in turns. Token p of a context is rank p / run % world's, its token number
/// p / (run * world) * run + p % run. Lengths (cache_seqlens) are then of whole contexts: the plan and the
/// kernels work out how many of these tokens the rank holds, and `causal` and `window` go by a token's place
/// in the context. A request's page table lists the rank's own tokens. out and lse are those of the rank's
/// tokens; combine() merges ranks, and a rank without tokens counts for nothing.
struct ContextShard {
  int rank = 0;   ///< 0 to world - 1.
  int world = 1;  ///< 1: the cache holds all tokens. Up to 2^16.
  int run = 1;    ///< 1 to 2^20; world * run is at most 2^30.

  friend bool operator==(const ContextShard&, const ContextShard&) = default;
};

/// Decode of a batch out of a paged KV cache, dense or sparse. For request i with L cached tokens, query
/// token t and query head h of KV head k = h / (heads / kv_heads):
///   S = softmax_scale * q . K^T over tokens [0, L), or with `causal` over [0, L - s_q + t + 1);
///   out = softmax(S) . V;  lse = ln sum exp S.
/// Sparse, query token t attends to the tokens that its `topk` indices name instead (DeepSeek Sparse
/// Attention, DeepSeek-V3.2, arXiv 2512.02556), and there is no page table. V is the first `v_dim` elements
/// of the cached row (MLA, DeepSeek-V2, arXiv 2405.04434 after weight absorption).
///
/// With Cache::extra a query token attends to a second cache as well, in the same softmax (DeepSeek V4): to
/// the tokens that its own indices name, or to all that a second page table has.
struct DecodeProblem {
  struct Query {
    int batch = 1;        ///< Requests, 0 to 2^20; a request of length 0 is legal padding.
    int tokens = 1;       ///< s_q, 1 to 2^20: query tokens a request; ragged: the most that any request has.
    int heads = 1;        ///< h_q, 1 to 65,536, a multiple of Cache::heads; tokens * heads is at most 2^30.
    bool ragged = false;  ///< q is packed (total tokens, heads, qk_dim) and cu_seqlens_q says where.
    bool e4m3 = false;    ///< q is e4m3, times DecodeInputs::q_scale; only with an e4m3 latent cache.

    friend bool operator==(const Query&, const Query&) = default;
  } query;

  struct Cache {
    KvFormat format = KvFormat::kPlain;
    Dtype dtype = Dtype::kBF16;  ///< kBF16 or kF16: of out, q unless it is e4m3, and a plain cache. With FP8
                                 ///< latent formats kBF16.
    int heads = 1;               ///< h_kv.
    int qk_dim = 576;            ///< Elements of a cached row, all of which meet q; 1 to 4,096.
    int v_dim = 512;             ///< Its first elements that are the value; 1 to qk_dim.
    int page_size = 64;          ///< Tokens a page, 1 to 2^20.
    int max_pages = 0;           ///< Columns of the page table: the most pages that a request has; 0 to 2^30.
                                 ///< Sparse: 0.
    /// kSeparate and kPacked: qk_dim is a key's dimension, v_dim a value's.
    KvLayout layout = KvLayout::kLatent;
    ExtraCache extra = {};

    friend bool operator==(const Cache&, const Cache&) = default;
  } cache;

  struct Sparse {
    bool enabled = false;
    int topk = 0;  ///< Indices of a query token, 0 to 2^30; batch * tokens is at most 2^30 then.

    friend bool operator==(const Sparse&, const Sparse&) = default;
  } sparse;

  struct Options {
    /// Finite. Must be set: the initial value, NaN, is refused. 1/sqrt(192) for DeepSeek-V3.
    float softmax_scale = std::numeric_limits<float>::quiet_NaN();
    bool causal = false;           ///< The last query token sees all L tokens, each one before it one less.
                                   ///< Sparse: false, the indices decide.
    bool attn_sink = false;        ///< One extra fp32 logit a head, see DecodeInputs::attn_sink.
    bool batch_invariant = false;  ///< A request's bits do not depend on its batch-mates; costs some balance.
    PrefixSharing prefix_sharing = PrefixSharing::kOff;  ///< See plan(); not with batch_invariant.
    /// lse of rows that attend to nothing: -inf, which counts for nothing when parts are merged, or +inf.
    float empty_lse = -std::numeric_limits<float>::infinity();
    /// By page table a query token sees the last `window` of the tokens that it would see. 0: all of them. Of
    /// two caches it is the first one's.
    int window = 0;
    Products products = Products::kAuto;
    SeparateOptions separate = {};
    /// How many calls of decode() read one plan: a model's layers, 1 for a draft model or a multi-token
    /// prediction module of one layer. 0: many. On CUDA schedule() does not pack requests into parts where
    /// that would take longer than these calls gain by it. It changes a plan's cuts and so the order of sums,
    /// not which kernel runs nor the sizes of buffers; a plan made with one value may be read with another.
    int calls_per_plan = 0;
    /// Of cache_seqlens and block_table; on CUDA not with ALiBi. Not in sparse decode, whose indices name the
    /// rank's own slots, nor with an attention sink, which is for combine() to apply. An extra cache's
    /// lengths and indices are the rank's own.
    ContextShard shard = {};

    friend bool operator==(const Options&, const Options&) = default;
  } options;

  /// Do the query tokens of a request attend to tokens of their own? A plan's items are query tokens then.
  bool token_items() const { return sparse.enabled || cache.extra.enabled; }

  /// Are the matrix products e4m3?
  bool fp8_products() const {
    return options.products == Products::kFp8 || (options.products == Products::kAuto && query.e4m3);
  }

  /// Query rows (token x head) that share one KV head and its tokens.
  int rows_per_kv_head() const { return (token_items() ? 1 : query.tokens) * (query.heads / cache.heads); }

  friend bool operator==(const DecodeProblem&, const DecodeProblem&) = default;
};

/// "decode b=128 s_q=1 h_q=128 h_kv=1 d=576/512 bf16 page=64x65 causal"; "sparse decode ... topk=2048".
std::string to_string(const DecodeProblem& problem);

/// Is every field in its range? kInvalidArgument names the field, its value and the range. Whether a kernel
/// takes the problem is for plan_bytes() and explain() to say.
Status validate(const DecodeProblem& problem);

}  // namespace flashlatent
