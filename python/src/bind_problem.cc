// flashlatent.Problem: shapes and options.
#include <nanobind/stl/optional.h>

#include "flashlatent/decode.h"
#include "python/src/array.h"
#include "python/src/bindings.h"
#include "python/src/errors.h"

namespace flashlatent::python {

Dtype dtype_from_name(std::string_view name) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32, Dtype::kI32, Dtype::kU8}) {
    if (name == to_string(dtype)) return dtype;
  }
  refuse("dtype is '", name, "'; bf16 and fp16 are accepted");
}

namespace {

DecodeProblem make_problem(int batch, int heads, float softmax_scale, int max_pages, int tokens, int kv_heads,
                           int qk_dim, int v_dim, int page_size, const std::string& dtype,
                           const std::string& kv_format, std::optional<int> topk, bool causal, bool ragged,
                           bool attn_sink, bool batch_invariant) {
  DecodeProblem problem;
  problem.query = {.batch = batch, .tokens = tokens, .heads = heads, .ragged = ragged};
  problem.cache = {.format = take(kv_format_from_name(kv_format)),
                   .dtype = dtype_from_name(dtype),
                   .heads = kv_heads,
                   .qk_dim = qk_dim,
                   .v_dim = v_dim,
                   .page_size = page_size,
                   .max_pages = max_pages};
  problem.sparse = {.enabled = topk.has_value(), .topk = topk.value_or(0)};
  problem.options = {.softmax_scale = softmax_scale,
                     .causal = causal,
                     .attn_sink = attn_sink,
                     .batch_invariant = batch_invariant};
  check(validate(problem));
  return problem;
}

DecodeProblem of_arrays(nb::handle q, nb::handle kv_cache, nb::handle block_table, float softmax_scale,
                        int v_dim, bool causal, nb::handle indices, nb::handle cu_seqlens_q, bool attn_sink,
                        bool batch_invariant, const std::optional<std::string>& dtype,
                        std::optional<int> tokens) {
  std::optional<Dtype> bits;
  if (dtype) bits = dtype_from_name(*dtype);
  const Array q_array = Array::read("q", q, bits);
  const Array cache_array = Array::read("kv_cache", kv_cache, bits);
  const Array table_array = Array::read("block_table", block_table);
  const Array indices_array = Array::read("indices", indices);
  const Array begins_array = Array::read("cu_seqlens_q", cu_seqlens_q);
  DecodeInputs inputs;
  inputs.q = q_array.view();
  inputs.kv_cache = cache_array.view();
  inputs.block_table = table_array.view();
  inputs.indices = indices_array.view();
  inputs.cu_seqlens_q = begins_array.view();
  DecodeProblem problem = take(infer_problem(
      inputs, v_dim, {.softmax_scale = softmax_scale, .causal = causal, .batch_invariant = batch_invariant}));
  problem.options.attn_sink = attn_sink;
  if (tokens) problem.query.tokens = *tokens;
  check(validate(problem));
  return problem;
}

}  // namespace

void bind_problem(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<DecodeProblem>(
      module, "Problem", "What one decode call computes, as shapes and options; no arrays. See _native.pyi.")
      .def(
          "__init__",
          [](DecodeProblem* self, int batch, int heads, float softmax_scale, int max_pages, int tokens,
             int kv_heads, int qk_dim, int v_dim, int page_size, const std::string& dtype,
             const std::string& kv_format, std::optional<int> topk, bool causal, bool ragged, bool attn_sink,
             bool batch_invariant) {
            new (self) DecodeProblem(make_problem(batch, heads, softmax_scale, max_pages, tokens, kv_heads,
                                                  qk_dim, v_dim, page_size, dtype, kv_format, topk, causal,
                                                  ragged, attn_sink, batch_invariant));
          },
          nb::kw_only(), "batch"_a, "heads"_a, "softmax_scale"_a, "max_pages"_a = 0, "tokens"_a = 1,
          "kv_heads"_a = 1, "qk_dim"_a = 576, "v_dim"_a = 512, "page_size"_a = 64, "dtype"_a = "bf16",
          "kv_format"_a = "plain", "topk"_a = nb::none(), "causal"_a = false, "ragged"_a = false,
          "attn_sink"_a = false, "batch_invariant"_a = false)
      .def_static("of_arrays", &of_arrays, "q"_a, "kv_cache"_a, "block_table"_a = nb::none(), nb::kw_only(),
                  "softmax_scale"_a, "v_dim"_a = 512, "causal"_a = false, "indices"_a = nb::none(),
                  "cu_seqlens_q"_a = nb::none(), "attn_sink"_a = false, "batch_invariant"_a = false,
                  "dtype"_a = nb::none(), "tokens"_a = nb::none(), "The problem that these arrays pose.")
      .def("__eq__", [](const DecodeProblem& a, const DecodeProblem& b) { return a == b; })
      .def("__repr__", [](const DecodeProblem& p) { return "<flashlatent.Problem " + to_string(p) + ">"; })
      .def("__str__", [](const DecodeProblem& p) { return to_string(p); })
      .def_prop_ro("batch", [](const DecodeProblem& p) { return p.query.batch; })
      .def_prop_ro("tokens", [](const DecodeProblem& p) { return p.query.tokens; })
      .def_prop_ro("heads", [](const DecodeProblem& p) { return p.query.heads; })
      .def_prop_ro("ragged", [](const DecodeProblem& p) { return p.query.ragged; })
      .def_prop_ro("dtype", [](const DecodeProblem& p) { return to_string(p.cache.dtype); })
      .def_prop_ro("kv_heads", [](const DecodeProblem& p) { return p.cache.heads; })
      .def_prop_ro("qk_dim", [](const DecodeProblem& p) { return p.cache.qk_dim; })
      .def_prop_ro("v_dim", [](const DecodeProblem& p) { return p.cache.v_dim; })
      .def_prop_ro("page_size", [](const DecodeProblem& p) { return p.cache.page_size; })
      .def_prop_ro("max_pages", [](const DecodeProblem& p) { return p.cache.max_pages; })
      .def_prop_ro("kv_format", [](const DecodeProblem& p) { return to_string(p.cache.format); })
      .def_prop_ro("topk",
                   [](const DecodeProblem& p) -> std::optional<int> {
                     if (!p.sparse.enabled) return {};
                     return p.sparse.topk;
                   })
      .def_prop_ro("softmax_scale", [](const DecodeProblem& p) { return p.options.softmax_scale; })
      .def_prop_ro("causal", [](const DecodeProblem& p) { return p.options.causal; })
      .def_prop_ro("attn_sink", [](const DecodeProblem& p) { return p.options.attn_sink; })
      .def_prop_ro("batch_invariant", [](const DecodeProblem& p) { return p.options.batch_invariant; });
}

}  // namespace flashlatent::python
