#include "core/validate.h"

#include <algorithm>
#include <cstdint>

#include "core/edge_check.h"
#include "core/expect.h"
#include "core/formats/formats.h"
#include "core/input_check.h"
#include "core/message.h"
#include "core/query_parts.h"

namespace flashlatent {

namespace {

/// Refuses tensors that are given, but have no meaning in the problem.
Status absent(const char* name, const ConstTensorView& view, const char* why) {
  if (!view.present()) return {};
  return invalid_argument(name, " is given, but ", why);
}
Status absent(std::initializer_list<std::pair<const char*, const ConstTensorView*>> views, const char* why) {
  for (const auto& [name, view] : views) FLASHLATENT_RETURN_IF_ERROR(absent(name, *view, why));
  return {};
}

/// Checks cu_seqlens_q's values on the CPU, where kernels index by them. On a device they are not read.
Status validate_begins(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const input_check::Tables tables = input_check::tables_of(problem, inputs);
  return to_status(input_check::offence_at(tables, input_check::first_begin(tables)));
}

/// Checks a latent cache of `format`, in pages of `page_size` tokens.
Status validate_pages(const char* name, const ConstTensorView& view, const DecodeProblem::Cache& cache,
                      const LatentFormat& format, int page_size, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(
      expect(name, view, format.dtype(cache.dtype), device,
             {-1, page_size, format.plain() ? cache.heads : 1, format.last_extent(cache.qk_dim)}));
  return expect_page_strides(name, view, format);
}

Status validate_latent_scales(const DecodeProblem& problem, const DecodeInputs& inputs, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(problem.cache.format == KvFormat::kE4m3
                                  ? expect_scale("kv_scale", inputs.kv_scale, 1, device)
                                  : absent("kv_scale", inputs.kv_scale, "the cache's KV format is not e4m3"));
  if (!problem.query.e4m3) return absent("q_scale", inputs.q_scale, "q is not e4m3");
  return expect_scale("q_scale", inputs.q_scale, problem.query.heads, device);
}

Status validate_latent_cache(const DecodeProblem& problem, const DecodeInputs& inputs, Device device) {
  const auto& cache = problem.cache;
  FLASHLATENT_RETURN_IF_ERROR(
      validate_pages("kv_cache", inputs.kv_cache, cache, format_of(cache), cache.page_size, device));
  FLASHLATENT_RETURN_IF_ERROR(absent({{"key_cache", &inputs.key_cache},
                                      {"value_cache", &inputs.value_cache},
                                      {"key_scale", &inputs.key_scale},
                                      {"value_scale", &inputs.value_scale},
                                      {"alibi_slopes", &inputs.alibi_slopes}},
                                     "the problem's cache is latent"));
  return validate_latent_scales(problem, inputs, device);
}

/// Checks the extra cache and the tensors that say which of its tokens a query token attends to.
Status validate_extra_cache(const DecodeProblem& problem, const DecodeInputs& inputs, Device device) {
  const ExtraCache& extra = problem.cache.extra;
  const auto& query = problem.query;
  if (!extra.enabled) {
    return absent({{"extra_kv_cache", &inputs.extra_kv_cache},
                   {"extra_indices", &inputs.extra_indices},
                   {"extra_topk_length", &inputs.extra_topk_length},
                   {"extra_block_table", &inputs.extra_block_table},
                   {"extra_cache_seqlens", &inputs.extra_cache_seqlens}},
                  "the problem has no extra cache");
  }
  FLASHLATENT_RETURN_IF_ERROR(validate_pages("extra_kv_cache", inputs.extra_kv_cache, problem.cache,
                                             extra_format_of(problem.cache), extra.page_size, device));
  if (extra.indexed) {
    FLASHLATENT_RETURN_IF_ERROR(absent({{"extra_block_table", &inputs.extra_block_table},
                                        {"extra_cache_seqlens", &inputs.extra_cache_seqlens}},
                                       "the extra cache goes by extra_indices"));
    return expect_strided("extra_indices", inputs.extra_indices, Dtype::kI32, device,
                          {query.batch, query.tokens, extra.topk});
  }
  FLASHLATENT_RETURN_IF_ERROR(
      absent({{"extra_indices", &inputs.extra_indices}, {"extra_topk_length", &inputs.extra_topk_length}},
             "the extra cache goes by extra_block_table"));
  return expect_strided("extra_block_table", inputs.extra_block_table, Dtype::kI32, device,
                        {query.batch, extra.max_pages});
}

/// Checks lengths that may be one a request or, unless queries are ragged, one a query token.
Status expect_lengths(const char* name, const ConstTensorView& lengths, const DecodeProblem& problem,
                      Device device) {
  const auto& query = problem.query;
  if (lengths.rank == 2 && !query.ragged) {
    return expect_strided(name, lengths, Dtype::kI32, device, {query.batch, query.tokens});
  }
  return expect_strided(name, lengths, Dtype::kI32, device, {query.batch});
}

/// Checks the extra cache's lengths for plan().
Status validate_extra_lengths(const DecodeProblem& problem, const ConstTensorView& lengths, Device device) {
  const ExtraCache& extra = problem.cache.extra;
  if (!extra.enabled) return absent("lengths.extra", lengths, "the problem has no extra cache");
  if (extra.indexed && !lengths.present()) return {};
  return expect_lengths(extra.indexed ? "extra_topk_length" : "extra_cache_seqlens", lengths, problem,
                        device);
}

/// Checks cu_seqlens_q for plan().
Status validate_plan_begins(const DecodeProblem& problem, const ConstTensorView& begins, Device device) {
  if (!problem.query.ragged) return absent("cu_seqlens_q", begins, "the problem is not ragged");
  if (!begins.present()) return {};
  return expect_strided("cu_seqlens_q", begins, Dtype::kI32, device, {problem.query.batch + 1LL});
}

Status validate_scale(const char* name, const ConstTensorView& scale, const DecodeProblem& problem,
                      Device device) {
  if (problem.cache.format != KvFormat::kE4m3) return absent(name, scale, "the KV format is not e4m3");
  return expect_scale(name, scale, problem.cache.heads, device);
}

Status validate_separate_caches(const DecodeProblem& problem, const DecodeInputs& inputs, Device device) {
  const auto& cache = problem.cache;
  const bool plain = cache.format == KvFormat::kPlain;
  const Dtype dtype = plain ? cache.dtype : Dtype::kU8;
  const std::int64_t pages = inputs.key_cache.present() ? inputs.key_cache.shape[0] : -1;
  const std::int64_t x = plain ? 8 : 16;
  if (cache.layout == KvLayout::kPacked) {
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("key_cache", inputs.key_cache, dtype, device,
                                               {-1, cache.heads, cache.qk_dim / x, cache.page_size, x}));
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("value_cache", inputs.value_cache, dtype, device,
                                               {pages, cache.heads, cache.v_dim, cache.page_size}));
  } else {
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("key_cache", inputs.key_cache, dtype, device,
                                               {-1, cache.page_size, cache.heads, cache.qk_dim}));
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("value_cache", inputs.value_cache, dtype, device,
                                               {pages, cache.page_size, cache.heads, cache.v_dim}));
  }
  FLASHLATENT_RETURN_IF_ERROR(
      absent({{"kv_cache", &inputs.kv_cache}, {"kv_scale", &inputs.kv_scale}, {"q_scale", &inputs.q_scale}},
             "the problem has separate keys and values"));
  FLASHLATENT_RETURN_IF_ERROR(validate_scale("key_scale", inputs.key_scale, problem, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_scale("value_scale", inputs.value_scale, problem, device));
  if (!problem.options.separate.alibi) {
    return absent("alibi_slopes", inputs.alibi_slopes, "the problem has alibi off");
  }
  return expect_strided("alibi_slopes", inputs.alibi_slopes, Dtype::kF32, device, {problem.query.heads});
}

/// Checks q_rope beside q, before q's own shape is blamed.
Status validate_query_parts(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const auto& cache = problem.cache;
  if (inputs.q_rope.present()) {
    if (cache.layout != KvLayout::kLatent) {
      return absent("q_rope", inputs.q_rope, "the problem has separate keys and values");
    }
    if (!query_parts::has_rope(cache.qk_dim)) {
      return invalid_argument("q_rope is ", to_string(inputs.q_rope), ", but the problem has qk_dim ",
                              cache.qk_dim, "; beside q_rope qk_dim is 576 or 320");
    }
    return query_parts::expect_fit(inputs.q, inputs.q_rope);
  }
  const ConstTensorView& q = inputs.q;
  const int first = query_parts::first_columns(cache.qk_dim);
  if (first < cache.qk_dim && cache.layout == KvLayout::kLatent && q.rank > 0 &&
      q.shape[q.rank - 1] == first) {
    return invalid_argument("q is ", to_string(q), " and q_rope is missing, but the problem has qk_dim ",
                            cache.qk_dim, "; q with ", cache.qk_dim, " columns, or with ", first,
                            " beside q_rope with ", query_parts::kRopeDim, ", is accepted");
  }
  return {};
}

/// Checks the query's tensors.
Status validate_query(const DecodeProblem& problem, const DecodeInputs& inputs, Device device) {
  const auto& query = problem.query;
  const Dtype dtype = query.e4m3 ? Dtype::kU8 : problem.cache.dtype;
  FLASHLATENT_RETURN_IF_ERROR(validate_query_parts(problem, inputs));
  const int columns = query_parts::columns_of_q(problem, inputs);
  if (query.ragged) {
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("q", inputs.q, dtype, device, {-1, query.heads, columns}));
    if (inputs.q_rope.present()) {
      FLASHLATENT_RETURN_IF_ERROR(
          expect_strided("q_rope", inputs.q_rope, dtype, device, {-1, query.heads, query_parts::kRopeDim}));
    }
    return expect_strided("cu_seqlens_q", inputs.cu_seqlens_q, Dtype::kI32, device, {query.batch + 1LL});
  }
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided("q", inputs.q, dtype, device, {query.batch, query.tokens, query.heads, columns}));
  if (inputs.q_rope.present()) {
    FLASHLATENT_RETURN_IF_ERROR(
        expect_strided("q_rope", inputs.q_rope, dtype, device,
                       {query.batch, query.tokens, query.heads, query_parts::kRopeDim}));
  }
  return absent("cu_seqlens_q", inputs.cu_seqlens_q, "the problem is not ragged");
}

/// Checks the tensors that say which tokens a query token attends to: page table and lengths, or indices.
Status validate_tokens(const DecodeProblem& problem, const DecodeInputs& inputs, Device device) {
  const auto& query = problem.query;
  if (!problem.sparse.enabled) {
    FLASHLATENT_RETURN_IF_ERROR(
        absent({{"indices", &inputs.indices}, {"topk_length", &inputs.topk_length}}, "the problem is dense"));
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("block_table", inputs.block_table, Dtype::kI32, device,
                                               {query.batch, problem.cache.max_pages}));
    return validate_lengths(problem, lengths_of(problem, inputs), device);
  }
  FLASHLATENT_RETURN_IF_ERROR(
      absent({{"block_table", &inputs.block_table}, {"cache_seqlens", &inputs.cache_seqlens}},
             "sparse decode goes by indices"));
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("indices", inputs.indices, Dtype::kI32, device,
                                             {query.batch, query.tokens, problem.sparse.topk}));
  return validate_lengths(problem, lengths_of(problem, inputs), device);
}

}  // namespace

PlanLengths lengths_of(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const bool indexed = problem.cache.extra.indexed;
  return {problem.sparse.enabled ? inputs.topk_length : inputs.cache_seqlens,
          indexed ? inputs.extra_topk_length : inputs.extra_cache_seqlens, inputs.cu_seqlens_q};
}

Status validate_lengths(const DecodeProblem& problem, const PlanLengths& lengths, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(validate_extra_lengths(problem, lengths.extra, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_plan_begins(problem, lengths.cu_seqlens_q, device));
  const auto& [query, cache, sparse, options] = problem;
  if (!sparse.enabled) {
    return expect_strided("cache_seqlens", lengths.cache, Dtype::kI32, device, {query.batch});
  }
  if (!lengths.cache.present()) return {};
  FLASHLATENT_RETURN_IF_ERROR(expect_lengths("topk_length", lengths.cache, problem, device));
  const bool rows_together = query.batch <= 1 || lengths.cache.strides[0] == query.tokens;
  if (lengths.cache.rank == 1 || cache.extra.enabled || rows_together) return {};
  return invalid_argument(
      "topk_length is ", to_string(lengths.cache), " with a stride of ", lengths.cache.strides[0],
      " from row to row; without an extra cache a stride of s_q, ", query.tokens, ", is accepted");
}

Status validate_host_pages(const DecodeProblem& problem, const HostPages& pages) {
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("pages.block_table", pages.block_table, Dtype::kI32, Device{},
                                             {problem.query.batch, problem.cache.max_pages}));
  return expect_strided("pages.cache_seqlens", pages.cache_seqlens, Dtype::kI32, Device{},
                        {problem.query.batch});
}

Status validate_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, Device device) {
  const auto& [query, cache, sparse, options] = problem;
  FLASHLATENT_RETURN_IF_ERROR(validate_query(problem, inputs, device));
  FLASHLATENT_RETURN_IF_ERROR(cache.layout == KvLayout::kLatent
                                  ? validate_latent_cache(problem, inputs, device)
                                  : validate_separate_caches(problem, inputs, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_extra_cache(problem, inputs, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_tokens(problem, inputs, device));
  if (options.attn_sink) {
    return expect_strided("attn_sink", inputs.attn_sink, Dtype::kF32, device, {query.heads});
  }
  return absent("attn_sink", inputs.attn_sink, "the problem has attn_sink off");
}

Status validate_decode(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
                       Device device) {
  const auto& [query, cache, sparse, options] = problem;
  FLASHLATENT_RETURN_IF_ERROR(validate_inputs(problem, inputs, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_query_edge(problem, inputs, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_output_edge(problem, inputs, outputs, device));
  if (outputs.out.present() || !outputs.out_fp8.present()) {
    const TensorView out = output_shape(problem, inputs, device);
    const Extents extents(std::span(out.shape.data(), static_cast<std::size_t>(out.rank)));
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("out", outputs.out, cache.dtype, device, extents));
  }
  const std::int64_t rows = std::int64_t{query.batch} * query.tokens;
  if (query.ragged && (options.q_edge || options.out_edge) && inputs.q.shape[0] > rows) {
    return invalid_argument("q is ", to_string(inputs.q), "; with q_edge or out_edge a ragged q has at most ",
                            "batch x s_q tokens, ", rows);
  }
  if (query.ragged && device.type == DeviceType::kCpu) {
    FLASHLATENT_RETURN_IF_ERROR(validate_begins(problem, inputs));
  }
  return expect("lse", outputs.lse, Dtype::kF32, device, {query.batch, query.heads, query.tokens});
}

Status validate_memory(const char* name, Memory memory, std::size_t bytes, std::size_t alignment) {
  if (bytes == 0) return {};
  if (memory.data == nullptr || memory.bytes < bytes) {
    return {StatusCode::kExhausted, message(name, " has ", memory.data == nullptr ? 0 : memory.bytes,
                                            " bytes; this problem needs ", bytes)};
  }
  if (reinterpret_cast<std::uintptr_t>(memory.data) % alignment != 0) {
    return invalid_argument(name, " is at ", memory.data, "; it must be aligned to ", alignment, " bytes");
  }
  return {};
}

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

}  // namespace

Result<DecodeProblem> infer_problem(const DecodeInputs& inputs, int v_dim,
                                    const DecodeProblem::Options& options, const CacheFormat& said,
                                    std::optional<KvFormat> extra_format) {
  const bool ragged = inputs.cu_seqlens_q.present();
  const int q_rank = ragged ? 3 : 4;
  const LatentFormat* format = &kPlainFormat;
  if (inputs.kv_cache.rank == 4 && !inputs.key_cache.present()) {
    FLASHLATENT_ASSIGN_OR_RETURN(format, resolve_format("kv_cache", inputs.kv_cache, said));
  }
  FLASHLATENT_RETURN_IF_ERROR(validate_query_dtype(inputs, *format));
  if (inputs.q.rank != q_rank) {
    return invalid_argument("q is ", to_string(inputs.q), "; expected ",
                            ragged ? "(total tokens, h_q, d) beside cu_seqlens_q" : "(batch, s_q, h_q, d)");
  }
  const bool separate = inputs.key_cache.present();
  const bool packed = inputs.key_cache.rank == 5;
  if (inputs.q_rope.present()) {
    if (separate) return absent("q_rope", inputs.q_rope, "the problem has separate keys and values");
    FLASHLATENT_RETURN_IF_ERROR(query_parts::expect_fit(inputs.q, inputs.q_rope));
  }
  const ConstTensorView& keys = separate ? inputs.key_cache : inputs.kv_cache;
  const ConstTensorView& values = inputs.value_cache;
  if (keys.rank != (packed ? 5 : 4)) {
    return invalid_argument(separate ? "key_cache is " : "kv_cache is ", to_string(keys),
                            "; expected (pages, page_size, h_kv, d)",
                            separate ? " or (pages, h_kv, d / x, page_size, x)" : "");
  }
  if (separate && values.rank != 4) {
    return invalid_argument("value_cache is ", to_string(values), "; expected ",
                            packed ? "(pages, h_kv, d, page_size)" : "(pages, page_size, h_kv, d)");
  }
  const bool sparse = inputs.indices.present();
  const ConstTensorView& tokens = sparse ? inputs.indices : inputs.block_table;
  if (!tokens.present()) {
    return invalid_argument(
        "block_table is missing; expected int32 (batch, max_pages), or for sparse decode ",
        "indices, int32 (batch, s_q, topk)");
  }
  if (tokens.rank != (sparse ? 3 : 2)) {
    return invalid_argument(sparse ? "indices is " : "block_table is ", to_string(tokens), "; expected ",
                            sparse ? "(batch, s_q, topk)" : "(batch, max_pages)");
  }
  FLASHLATENT_RETURN_IF_ERROR(validate_batch(sparse ? "indices" : "block_table", tokens, inputs));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("q", inputs.q));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable(separate ? "key_cache" : "kv_cache", keys));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("value_cache", values));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable(sparse ? "indices" : "block_table", tokens));
  DecodeProblem problem;
  problem.query.batch = static_cast<int>(tokens.shape[0]);
  problem.query.ragged = ragged;
  // cu_seqlens_q may be on a device and is not read here, so the bound on a request's query tokens is their
  // total; without any token it is 1, which no request reaches.
  problem.query.tokens =
      static_cast<int>(ragged ? std::max<std::int64_t>(inputs.q.shape[0], 1) : inputs.q.shape[1]);
  problem.query.heads = static_cast<int>(inputs.q.shape[q_rank - 2]);
  if (separate && said != CacheFormat{}) {
    return invalid_argument("kv_format or scales is given, and key_cache is; they are for a latent cache");
  }
  problem.cache.format = !separate                  ? format->format
                         : keys.dtype == Dtype::kU8 ? KvFormat::kE4m3
                                                    : KvFormat::kPlain;
  if (has_places(format->format)) problem.cache.scales = format->place;
  problem.cache.layout = packed ? KvLayout::kPacked : separate ? KvLayout::kSeparate : KvLayout::kLatent;
  problem.query.e4m3 = inputs.q.dtype == Dtype::kU8;
  problem.cache.dtype = problem.query.e4m3 ? Dtype::kBF16 : inputs.q.dtype;
  problem.cache.heads = static_cast<int>(keys.shape[packed ? 1 : 2]);
  problem.cache.qk_dim = static_cast<int>(inputs.q.shape[q_rank - 1]);
  if (inputs.q_rope.present()) {
    problem.cache.qk_dim = query_parts::dim_of(inputs.q, inputs.q_rope);
    if (format->elements_of(keys.shape[3]) != problem.cache.qk_dim) {
      return invalid_argument("q is ", to_string(inputs.q), " and q_rope is ", to_string(inputs.q_rope),
                              ", but kv_cache is ", to_string(keys), "; beside them its tokens have ",
                              problem.cache.qk_dim, " elements");
    }
  }
  problem.cache.v_dim = separate ? static_cast<int>(values.shape[packed ? 2 : 3]) : v_dim;
  problem.cache.page_size = static_cast<int>(keys.shape[packed ? 3 : 1]);
  problem.cache.max_pages = sparse ? 0 : static_cast<int>(inputs.block_table.shape[1]);
  problem.sparse = {.enabled = sparse, .topk = sparse ? static_cast<int>(inputs.indices.shape[2]) : 0};
  problem.options = options;
  FLASHLATENT_RETURN_IF_ERROR(infer_extra(inputs, *format, extra_format, problem));
  if (options.attn_sink && !inputs.attn_sink.present()) {
    return invalid_argument("attn_sink is missing, but the options have it; expected fp32 (h_q)");
  }
  if (options.separate.alibi && !inputs.alibi_slopes.present()) {
    return invalid_argument("alibi_slopes is missing, but the options have alibi; expected fp32 (h_q)");
  }
  problem.options.attn_sink = inputs.attn_sink.present();
  problem.options.separate.alibi = inputs.alibi_slopes.present();
  problem.options.q_edge = inputs.q_norm != 0 || inputs.q_rotate.present();
  problem.options.out_edge = options.out_edge || inputs.out_rotate.present();
  FLASHLATENT_RETURN_IF_ERROR(validate(problem));
  return problem;
}

}  // namespace flashlatent
