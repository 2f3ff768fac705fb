// What one decode call computes, as shapes and options. Size queries and kernel choice need nothing else.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// How a KV cache holds a token.
enum class KvFormat : std::uint8_t {
  kPlain,  ///< qk_dim elements of the cache's dtype for each KV head.
  /// 656 bytes: 512 e4m3, 4 fp32 scales (one for 128 elements), 64 bf16 (RoPE, not quantised). One KV head;
  /// qk_dim 576, or 512 without RoPE, where the last 128 bytes are never read. Bytes:
  /// docs/kv-cache-formats.md.
  kFp8_656,
  /// e4m3 elements times an fp32 scale. Latent: one scale for the cache, RoPE part included; one KV head;
  /// qk_dim 576, or 512 without RoPE. Keys and values apart: a scale for each, or one for each KV head.
  kE4m3,
  /// DeepSeek V4: 448 e4m3, 7 scale bytes (one for 64 elements), 64 bf16 (RoPE, not quantised). The scales of
  /// a page come after all its data. One KV head; qk_dim and v_dim 512.
  kFp8_584,
  // 512 elements, RoPE among them and quantised like the others; one KV head; qk_dim and v_dim 512:
  kMxfp8_528,  ///< DeepSeek V4.1: 512 e4m3, 16 scale bytes (one for 32 elements).
  kNvfp4_288,  ///< DeepSeek V4.1: 512 e2m1 in 256 bytes, 32 e4m3 scales (one for 16 elements).
  kFp8_528,    ///< fp8_656 without its RoPE part: 512 e4m3, 4 fp32 scales (one for 128 elements).
};

/// The name: "plain", "fp8_656", "e4m3", "fp8_584", "mxfp8_528", "nvfp4_288", "fp8_528".
const char* to_string(KvFormat format);
/// The format of that name. kInvalidArgument if there is none.
Result<KvFormat> kv_format_from_name(std::string_view name);

/// Where the scales of kMxfp8_528 and kNvfp4_288 lie. Other formats have one arrangement and take kAuto.
enum class ScalePlace : std::uint8_t {
  kAuto,   ///< Not said; refused where it must be.
  kToken,  ///< Each token's scales follow its data.
  kPage,   ///< The scales of a page's tokens follow the data of all of them.
};

/// The name: "auto", "token", "page".
const char* to_string(ScalePlace place);
/// The place of that name. kInvalidArgument if there is none.
Result<ScalePlace> scale_place_from_name(std::string_view name);

/// What 1e-4 bounds when a writer computes a group's scale, a power of two, from its largest magnitude amax.
enum class ScaleFloor : std::uint8_t {
  kAuto,   ///< The rule of the engine that the format is from: kScale for kFp8_656, kFp8_528, else kAmax.
  kAmax,   ///< 2^ceil(log2(max(amax, 1e-4) / 448)): vLLM's rule.
  kScale,  ///< 2^ceil(log2(max(amax / 448, 1e-4))): SGLang's rule.
};

/// The name: "auto", "amax", "scale".
const char* to_string(ScaleFloor floor);
/// The floor of that name. kInvalidArgument if there is none.
Result<ScaleFloor> scale_floor_from_name(std::string_view name);

/// What the caller says of a latent cache of bytes. A last dimension of 528 or 288 leaves the format open;
/// other last dimensions tell it.
struct CacheFormat {
  std::optional<KvFormat> format = {};  ///< Absent: as the last dimension says.
  ScalePlace scales = ScalePlace::kAuto;
  ScaleFloor floor = ScaleFloor::kAuto;  ///< For operations that write the cache.

  friend bool operator==(const CacheFormat&, const CacheFormat&) = default;
};

/// Where a token's keys and values are.
enum class KvLayout : std::uint8_t {
  /// One cache (pages, page_size, h_kv, qk_dim): a row is the key, and its first v_dim elements are the value
  /// (MLA).
  kLatent,
  kSeparate,  ///< Keys and values, each (pages, page_size, h_kv, d) (MHA, GQA, MQA).
  /// vLLM's: keys (pages, h_kv, d / x, page_size, x), where x elements are 16 bytes; values (pages, h_kv, d,
  /// page_size).
  kPacked,
};

/// The name: "latent", "separate", "packed".
const char* to_string(KvLayout layout);

/// The dtype of the matrix products from an e4m3 latent cache. All other formats take kAuto only.
enum class Products : std::uint8_t {
  kAuto,  ///< kFp8 where queries are e4m3, else kBf16.
  kBf16,  ///< Queries stay as they are; P is rounded to bf16.
  /// Products may be e4m3: bf16 queries are then rounded to e4m3 with a power of two for each row, and P is,
  /// too. A kernel that is faster without rounding rounds neither (docs/numerics.md).
  kFp8,
};

/// The name: "auto", "bf16", "fp8".
const char* to_string(Products products);
/// The choice of that name. kInvalidArgument if there is none.
Result<Products> products_from_name(std::string_view name);

/// May requests that share their first pages attend to them together ("cascade")?
enum class PrefixSharing : std::uint8_t {
  kOff,  ///< No.
  /// If plan() gets the page table on the host, the kernel can share, and sharing is estimated to pay.
  kAuto,
  /// As kAuto, but wherever two requests share a block, whether sharing pays or not. A kernel that cannot
  /// share declines the problem.
  kAlways,
};

/// The name: "off", "auto", "always".
const char* to_string(PrefixSharing sharing);
/// The choice of that name. kInvalidArgument if there is none.
Result<PrefixSharing> prefix_sharing_from_name(std::string_view name);

/// Options of KvLayout::kSeparate and kPacked only. The soft cap changes scores before ALiBi does.
struct SeparateOptions {
  /// s -> soft_cap * tanh(s / soft_cap) (Gemma 2, arXiv 2408.00118). 0: none. Not negative.
  float soft_cap = 0;
  /// s -> s + slope * (t - (L - 1)) for token t (ALiBi, arXiv 2108.12409), see DecodeInputs::alibi_slopes.
  bool alibi = false;

  friend bool operator==(const SeparateOptions&, const SeparateOptions&) = default;
};

/// A second cache: query tokens attend to both caches in one softmax. Only with KvLayout::kLatent. Not with
/// ragged queries if tokens are named by indices. Dtype, heads, dimensions and the place of scales are those
/// of the first cache; the page size is its own.
struct ExtraCache {
  bool enabled = false;
  bool indexed = false;  ///< DecodeInputs::extra_indices name its tokens; else extra_block_table does.
  int page_size = 64;    ///< Tokens a page, 1 to 2^20.
  int topk = 0;          ///< Indexed: indices of each query token, 0 to 2^30.
  int max_pages = 0;     ///< Not indexed: columns of extra_block_table, 0 to 2^30.
  /// Absent: the first cache's format. The one other combination is kNvfp4_288 beside kMxfp8_528.
  std::optional<KvFormat> format = {};

  friend bool operator==(const ExtraCache&, const ExtraCache&) = default;
};

/// Which tokens of its contexts a cache holds, where several ranks share contexts (context parallelism). Runs
/// of `run` tokens are dealt to the ranks round-robin: token p of a context is held by rank p / run % world,
/// as that rank's token number p / (run * world) * run + p % run. Lengths (cache_seqlens) are of whole
/// contexts; the plan and the kernels compute how many of these tokens the rank holds. `causal` and `window`
/// go by a token's position in the context. A request's page table lists the rank's own tokens. out and lse
/// cover the rank's tokens; combine() merges ranks, and a rank without tokens counts for nothing.
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
/// With Cache::extra a query token also attends to a second cache, in the same softmax (DeepSeek V4): to the
/// tokens that its own indices name, or to all tokens of a second page table.
struct DecodeProblem {
  struct Query {
    int batch = 1;  ///< Requests, 0 to 2^20; a request of length 0 is legal padding.
    /// s_q, 1 to 2^20: query tokens of each request; ragged: the most that any request has.
    int tokens = 1;
    int heads = 1;  ///< h_q, 1 to 65,536, a multiple of Cache::heads; tokens * heads is at most 2^30.
    /// q is packed (total tokens, heads, qk_dim); cu_seqlens_q says where requests begin.
    bool ragged = false;
    bool e4m3 = false;  ///< q is e4m3, times DecodeInputs::q_scale; only with an e4m3 latent cache.

    friend bool operator==(const Query&, const Query&) = default;
  } query;

  struct Cache {
    KvFormat format = KvFormat::kPlain;
    /// kBF16 or kF16: the dtype of out, of q unless q is e4m3, and of a plain cache. kBF16 with latent FP8
    /// formats.
    Dtype dtype = Dtype::kBF16;
    int heads = 1;       ///< h_kv.
    int qk_dim = 576;    ///< Elements of a cached row, all of which meet q; 1 to 4,096.
    int v_dim = 512;     ///< How many first elements of the row are V; 1 to qk_dim.
    int page_size = 64;  ///< Tokens a page, 1 to 2^20.
    /// Columns of the page table, the most pages of a request: 0 to 2^30. Sparse: 0.
    int max_pages = 0;
    /// With kSeparate and kPacked qk_dim is a key's dimension and v_dim a value's.
    KvLayout layout = KvLayout::kLatent;
    ExtraCache extra = {};
    ScalePlace scales = ScalePlace::kAuto;  ///< For both caches; kMxfp8_528 and kNvfp4_288 need it.

    KvFormat extra_format() const { return extra.format.value_or(format); }

    friend bool operator==(const Cache&, const Cache&) = default;
  } cache;

  struct Sparse {
    bool enabled = false;
    int topk = 0;  ///< Indices of each query token, 0 to 2^30; batch * tokens is then at most 2^30.

    friend bool operator==(const Sparse&, const Sparse&) = default;
  } sparse;

  struct Options {
    /// Factor of q . k, finite. Must be set: the initial value, NaN, is refused. DeepSeek-V3: 1/sqrt(192).
    float softmax_scale = std::numeric_limits<float>::quiet_NaN();
    /// The last query token sees all L tokens, and each one before it sees one token less. Sparse: must be
    /// false, because the indices decide.
    bool causal = false;
    bool attn_sink = false;  ///< One more fp32 logit a head, see DecodeInputs::attn_sink.
    /// A request's bits do not depend on the rest of the batch; plans balance less well.
    bool batch_invariant = false;
    PrefixSharing prefix_sharing = PrefixSharing::kOff;  ///< See plan(); not with batch_invariant.
    /// lse of rows that attend to nothing. -inf counts for nothing when results are merged; +inf is accepted,
    /// too.
    float empty_lse = -std::numeric_limits<float>::infinity();
    /// With a page table: a query token sees only the last `window` of the tokens that it would see. 0: all
    /// of them. With two caches it applies to the first one.
    int window = 0;
    Products products = Products::kAuto;
    SeparateOptions separate = {};
    /// How many calls of decode() read one plan: a model's layers; 1 for a draft model or a multi-token
    /// prediction module of one layer; 0: many. On CUDA schedule() does not pack requests into parts if
    /// packing would take longer than these calls gain. The value changes a plan's cuts and so the order of
    /// sums. It changes neither the kernel nor the sizes of buffers, and a plan that was made with one value
    /// may be read with another.
    int calls_per_plan = 0;
    /// How long contexts are expected to be, in tokens; 0: as far as the page table reaches (sparse: topk). A
    /// kernel and its cut are chosen for requests of this length. Results are right for any lengths up to the
    /// reach, and buffers have the same sizes for any value; only time depends on it. The value is rounded up
    /// to whole pages, and more than the reach counts as the reach. With batch_invariant it has no effect. A
    /// plan serves only calls with the same value.
    int typical_tokens = 0;
    /// Applies to cache_seqlens and block_table. Not for sparse decode, where indices name the rank's own
    /// slots; not with an attention sink, which combine() applies; on CUDA not with ALiBi. An extra cache's
    /// lengths and indices are the rank's own.
    ContextShard shard = {};
    /// The call normalises and rotates its queries (DecodeInputs::q_norm, q_rotate) ...
    bool q_edge = false;
    /// ... and rotates its outputs back or casts them to FP8 (DecodeInputs::out_rotate,
    /// DecodeOutputs::out_fp8). The workspace has room for what launches of their own pass on; then a ragged
    /// call's q has at most batch * s_q tokens.
    bool out_edge = false;

    friend bool operator==(const Options&, const Options&) = default;
  } options;

  /// Does each query token of a request attend to its own tokens? The plan's items are then query tokens.
  bool token_items() const { return sparse.enabled || cache.extra.enabled; }

  /// Are the matrix products e4m3?
  bool fp8_products() const {
    return options.products == Products::kFp8 || (options.products == Products::kAuto && query.e4m3);
  }

  /// Query rows (query token x head) that share one KV head and its tokens.
  int rows_per_kv_head() const { return (token_items() ? 1 : query.tokens) * (query.heads / cache.heads); }

  friend bool operator==(const DecodeProblem&, const DecodeProblem&) = default;
};

/// For logs: "decode b=128 s_q=1 h_q=128 h_kv=1 d=576/512 bf16 page=64x65 causal"; "sparse decode ...
/// topk=2048".
std::string to_string(const DecodeProblem& problem);

/// Is every field in its range? kInvalidArgument names the field, its value and the range. Whether a kernel
/// takes the problem, plan_bytes() and explain() say.
Status validate(const DecodeProblem& problem);

}  // namespace flashlatent
