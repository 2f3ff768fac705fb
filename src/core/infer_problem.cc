#include <algorithm>
#include <cstdint>

#include "core/expect.h"
#include "core/formats/formats.h"
#include "core/message.h"
#include "core/query_parts.h"
#include "flashlatent/decode.h"

namespace flashlatent {

namespace {

/// Refuses q itself, before its dtype becomes the problem's and another tensor is blamed.
Status validate_query_dtype(const DecodeInputs& inputs, const LatentFormat& format) {
  const Dtype dtype = inputs.q.dtype;
  if (!inputs.q.present()) return {};
  const bool e4m3 = inputs.kv_cache.present() && format.scales == ScaleKind::kOfCache;
  if (dtype == Dtype::kU8 && e4m3) return {};
  if (dtype != Dtype::kBF16 && dtype != Dtype::kF16) {
    return invalid_argument("q is ", to_string(inputs.q), "; bf16 and fp16 are accepted",
                            dtype == Dtype::kU8 ? ", bytes (e4m3) with an e4m3 latent cache" : "");
  }
  if (dtype != Dtype::kBF16 && inputs.kv_cache.dtype == Dtype::kU8 && inputs.kv_cache.present()) {
    return invalid_argument("q is ", to_string(inputs.q), "; with an ", format.name, " cache ",
                            e4m3 ? "bf16 and bytes (e4m3) are accepted" : "bf16 is accepted");
  }
  return {};
}

/// `name`, which is `tokens`, must have as many rows as q or cu_seqlens_q has requests.
Status validate_batch(const char* name, const ConstTensorView& tokens, const DecodeInputs& inputs) {
  const bool ragged = inputs.cu_seqlens_q.present();
  if (ragged && (inputs.cu_seqlens_q.rank != 1 || inputs.cu_seqlens_q.shape[0] < 1)) {
    return invalid_argument("cu_seqlens_q is ", to_string(inputs.cu_seqlens_q),
                            "; expected int32 (batch + 1)");
  }
  const std::int64_t batch = ragged ? inputs.cu_seqlens_q.shape[0] - 1 : inputs.q.shape[0];
  if (tokens.shape[0] == batch) return {};
  return invalid_argument(name, " is ", to_string(tokens), "; expected ", batch, " rows, one a request of ",
                          ragged ? "cu_seqlens_q" : "q");
}

/// Sets the problem's extra cache.
Status infer_extra(const DecodeInputs& inputs, const LatentFormat& first, std::optional<KvFormat> said,
                   DecodeProblem& problem) {
  const ConstTensorView& cache = inputs.extra_kv_cache;
  const bool indexed = inputs.extra_indices.present();
  const ConstTensorView& tokens = indexed ? inputs.extra_indices : inputs.extra_block_table;
  if (!cache.present()) {
    if (said) {
      return invalid_argument("extra_kv_format is ", to_string(*said), ", but extra_kv_cache is missing");
    }
    if (!tokens.present()) return {};
    return invalid_argument(indexed ? "extra_indices" : "extra_block_table",
                            " is given, but extra_kv_cache is missing");
  }
  if (cache.rank != 4) {
    return invalid_argument("extra_kv_cache is ", to_string(cache),
                            "; expected (pages, page_size, h_kv, d), as kv_cache");
  }
  if (!tokens.present()) {
    return invalid_argument(
        "extra_kv_cache is given, but neither extra_indices, int32 (batch, s_q, topk), nor ",
        "extra_block_table, int32 (batch, max_pages), is");
  }
  if (tokens.rank != (indexed ? 3 : 2)) {
    return invalid_argument(indexed ? "extra_indices is " : "extra_block_table is ", to_string(tokens),
                            "; expected ", indexed ? "(batch, s_q, topk)" : "(batch, max_pages)");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("extra_kv_cache", cache));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable(indexed ? "extra_indices" : "extra_block_table", tokens));
  FLASHLATENT_ASSIGN_OR_RETURN(const LatentFormat* format,
                               resolve_extra_format("extra_kv_cache", cache, first, said));
  const auto last = static_cast<int>(tokens.shape[indexed ? 2 : 1]);
  problem.cache.extra = {.enabled = true,
                         .indexed = indexed,
                         .page_size = static_cast<int>(cache.shape[1]),
                         .topk = indexed ? last : 0,
                         .max_pages = indexed ? 0 : last};
  if (format->format != first.format) problem.cache.extra.format = format->format;
  return {};
}

/// Which tensors a call has, from which most numbers of the problem are read.
struct Given {
  explicit Given(const DecodeInputs& inputs)
      : ragged(inputs.cu_seqlens_q.present()),
        separate(inputs.key_cache.present()),
        packed(inputs.key_cache.rank == 5),
        sparse(inputs.indices.present()),
        keys(separate ? inputs.key_cache : inputs.kv_cache),
        tokens(sparse ? inputs.indices : inputs.block_table) {}

  bool ragged, separate, packed, sparse;
  const ConstTensorView &keys, &tokens;

  int q_rank() const { return ragged ? 3 : 4; }
  const char* keys_name() const { return separate ? "key_cache" : "kv_cache"; }
  const char* tokens_name() const { return sparse ? "indices" : "block_table"; }
  KvLayout layout() const {
    return packed ? KvLayout::kPacked : separate ? KvLayout::kSeparate : KvLayout::kLatent;
  }
};

/// Checks that q, the caches and what names tokens are there, with ranks and extents that can be read.
Status validate_ranks(const DecodeInputs& inputs, const Given& given) {
  const auto& [ragged, separate, packed, sparse, keys, tokens] = given;
  if (inputs.q.rank != given.q_rank()) {
    return invalid_argument("q is ", to_string(inputs.q), "; expected ",
                            ragged ? "(total tokens, h_q, d) beside cu_seqlens_q" : "(batch, s_q, h_q, d)");
  }
  if (inputs.q_rope.present()) {
    if (separate) {
      return invalid_argument("q_rope is given, but the problem has separate keys and values");
    }
    FLASHLATENT_RETURN_IF_ERROR(query_parts::expect_fit(inputs.q, inputs.q_rope));
  }
  if (keys.rank != (packed ? 5 : 4)) {
    return invalid_argument(given.keys_name(), " is ", to_string(keys),
                            "; expected (pages, page_size, h_kv, d)",
                            separate ? " or (pages, h_kv, d / x, page_size, x)" : "");
  }
  const ConstTensorView& values = inputs.value_cache;
  if (separate && values.rank != 4) {
    return invalid_argument("value_cache is ", to_string(values), "; expected ",
                            packed ? "(pages, h_kv, d, page_size)" : "(pages, page_size, h_kv, d)");
  }
  if (!tokens.present()) {
    return invalid_argument(
        "block_table is missing; expected int32 (batch, max_pages), or for sparse decode ",
        "indices, int32 (batch, s_q, topk)");
  }
  if (tokens.rank != (sparse ? 3 : 2)) {
    return invalid_argument(given.tokens_name(), " is ", to_string(tokens), "; expected ",
                            sparse ? "(batch, s_q, topk)" : "(batch, max_pages)");
  }
  FLASHLATENT_RETURN_IF_ERROR(validate_batch(given.tokens_name(), tokens, inputs));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("q", inputs.q));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable(given.keys_name(), keys));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("value_cache", values));
  return expect_countable(given.tokens_name(), tokens);
}

/// Sets the problem's query, and the dtype of its cache.
void infer_query(const DecodeInputs& inputs, const Given& given, DecodeProblem& problem) {
  // cu_seqlens_q may be on a device and is not read here, so the bound on a request's query tokens is their
  // total; without any token it is 1, which no request reaches.
  const std::int64_t tokens = given.ragged ? std::max<std::int64_t>(inputs.q.shape[0], 1) : inputs.q.shape[1];
  problem.query.batch = static_cast<int>(given.tokens.shape[0]);
  problem.query.ragged = given.ragged;
  problem.query.tokens = static_cast<int>(tokens);
  problem.query.heads = static_cast<int>(inputs.q.shape[given.q_rank() - 2]);
  problem.query.e4m3 = inputs.q.dtype == Dtype::kU8;
  problem.cache.dtype = problem.query.e4m3 ? Dtype::kBF16 : inputs.q.dtype;
}

/// Sets the problem's cache; `format`: of a latent one.
Status infer_cache(const DecodeInputs& inputs, const Given& given, const LatentFormat& format, int v_dim,
                   DecodeProblem::Cache& cache) {
  const ConstTensorView& keys = given.keys;
  const bool packed = given.packed;
  cache.format = !given.separate            ? format.format
                 : keys.dtype == Dtype::kU8 ? KvFormat::kE4m3
                                            : KvFormat::kPlain;
  if (has_places(format.format)) cache.scales = format.place;
  cache.layout = given.layout();
  cache.heads = static_cast<int>(keys.shape[packed ? 1 : 2]);
  cache.qk_dim = static_cast<int>(inputs.q.shape[given.q_rank() - 1]);
  if (inputs.q_rope.present()) {
    cache.qk_dim = query_parts::dim_of(inputs.q, inputs.q_rope);
    if (format.elements_of(keys.shape[3]) != cache.qk_dim) {
      return invalid_argument("q is ", to_string(inputs.q), " and q_rope is ", to_string(inputs.q_rope),
                              ", but kv_cache is ", to_string(keys), "; beside them its tokens have ",
                              cache.qk_dim, " elements");
    }
  }
  cache.v_dim = given.separate ? static_cast<int>(inputs.value_cache.shape[packed ? 2 : 3]) : v_dim;
  cache.page_size = static_cast<int>(keys.shape[packed ? 3 : 1]);
  cache.max_pages = given.sparse ? 0 : static_cast<int>(inputs.block_table.shape[1]);
  return {};
}

/// Sets the options of which the tensors tell.
Status infer_options(const DecodeInputs& inputs, const DecodeProblem::Options& said,
                     DecodeProblem::Options& options) {
  if (said.attn_sink && !inputs.attn_sink.present()) {
    return invalid_argument("attn_sink is missing, but the options have it; expected fp32 (h_q)");
  }
  if (said.separate.alibi && !inputs.alibi_slopes.present()) {
    return invalid_argument("alibi_slopes is missing, but the options have alibi; expected fp32 (h_q)");
  }
  options = said;
  options.attn_sink = inputs.attn_sink.present();
  options.separate.alibi = inputs.alibi_slopes.present();
  options.q_edge = inputs.q_norm != 0 || inputs.q_rotate.present();
  options.out_edge = said.out_edge || inputs.out_rotate.present();
  return {};
}

}  // namespace

Result<DecodeProblem> infer_problem(const DecodeInputs& inputs, int v_dim,
                                    const DecodeProblem::Options& options, const CacheFormat& said,
                                    std::optional<KvFormat> extra_format) {
  const Given given(inputs);
  const LatentFormat* format = &kPlainFormat;
  if (inputs.kv_cache.rank == 4 && !given.separate) {
    FLASHLATENT_ASSIGN_OR_RETURN(format, resolve_format("kv_cache", inputs.kv_cache, said));
  }
  FLASHLATENT_RETURN_IF_ERROR(validate_query_dtype(inputs, *format));
  FLASHLATENT_RETURN_IF_ERROR(validate_ranks(inputs, given));
  if (given.separate && said != CacheFormat{}) {
    return invalid_argument("kv_format or scales is given, and key_cache is; they are for a latent cache");
  }
  DecodeProblem problem;
  infer_query(inputs, given, problem);
  FLASHLATENT_RETURN_IF_ERROR(infer_cache(inputs, given, *format, v_dim, problem.cache));
  const int topk = given.sparse ? static_cast<int>(inputs.indices.shape[2]) : 0;
  problem.sparse = {.enabled = given.sparse, .topk = topk};
  FLASHLATENT_RETURN_IF_ERROR(infer_extra(inputs, *format, extra_format, problem));
  FLASHLATENT_RETURN_IF_ERROR(infer_options(inputs, options, problem.options));
  FLASHLATENT_RETURN_IF_ERROR(validate(problem));
  return problem;
}

}  // namespace flashlatent
