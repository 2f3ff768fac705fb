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

}  // namespace flashlatent
