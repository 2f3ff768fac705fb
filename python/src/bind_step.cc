// flashlatent.Step: decode calls that plan when they need to.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include "python/src/bindings.h"
#include "python/src/constructor.h"
#include "python/src/errors.h"
#include "python/src/step.h"

namespace flashlatent::python {

namespace {

nb::tuple decode(Step& step, nb::handle q, nb::handle kv_cache, nb::handle block_table,
                 nb::handle cache_seqlens, float softmax_scale, int v_dim, bool causal, nb::handle indices,
                 nb::handle topk_length, nb::handle cu_seqlens_q, std::optional<int> tokens,
                 nb::handle attn_sink, bool batch_invariant, std::optional<std::string_view> dtype,
                 nb::object out, nb::object lse, nb::handle plan, nb::handle workspace, nb::handle stream,
                 float empty_lse, std::optional<bool> check_inputs) {
  StepOptions options;
  options.options = {.softmax_scale = softmax_scale,
                     .causal = causal,
                     .batch_invariant = batch_invariant,
                     .empty_lse = empty_lse};
  options.v_dim = v_dim;
  options.tokens = tokens;
  options.check_inputs = check_inputs;
  if (dtype) options.sixteen_bits = dtype_from_name(*dtype);
  return step.decode({q, kv_cache, block_table, cache_seqlens, indices, topk_length, cu_seqlens_q, attn_sink},
                     options, {std::move(out), std::move(lse), plan, workspace}, stream);
}

nb::tuple decode_kv(Step& step, nb::handle q, nb::handle key_cache, nb::handle value_cache,
                    nb::handle block_table, nb::handle cache_seqlens, float softmax_scale, bool causal,
                    int window, float soft_cap, nb::handle alibi_slopes, nb::handle key_scale,
                    nb::handle value_scale, nb::handle cu_seqlens_q, std::optional<int> tokens,
                    nb::handle attn_sink, bool batch_invariant, std::optional<std::string_view> dtype,
                    nb::object out, nb::object lse, nb::handle plan, nb::handle workspace, nb::handle stream,
                    float empty_lse, std::optional<bool> check_inputs) {
  StepOptions options;
  options.options = {.softmax_scale = softmax_scale,
                     .causal = causal,
                     .batch_invariant = batch_invariant,
                     .soft_cap = soft_cap,
                     .window = window,
                     .empty_lse = empty_lse};
  options.tokens = tokens;
  options.check_inputs = check_inputs;
  if (dtype) options.sixteen_bits = dtype_from_name(*dtype);
  return step.decode({.q = q,
                      .block_table = block_table,
                      .cache_seqlens = cache_seqlens,
                      .cu_seqlens_q = cu_seqlens_q,
                      .attn_sink = attn_sink,
                      .key_cache = key_cache,
                      .value_cache = value_cache,
                      .key_scale = key_scale,
                      .value_scale = value_scale,
                      .alibi_slopes = alibi_slopes},
                     options, {std::move(out), std::move(lse), plan, workspace}, stream);
}

/// The drop-in's call, its arguments by position: fewer names to match, and defaults without Python code.
nb::tuple decode_as_flash_mla(Step& step, nb::handle q, nb::handle k_cache, nb::handle block_table,
                              nb::handle cache_seqlens, int head_dim_v, std::optional<float> softmax_scale,
                              bool causal, bool is_fp8, nb::handle indices, nb::handle attn_sink,
                              nb::handle topk_length, bool check_inputs) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  StepOptions options;
  options.options = {.softmax_scale = softmax_scale.value_or(0), .causal = causal, .empty_lse = kInfinity};
  options.default_scale = !softmax_scale.has_value();
  options.v_dim = head_dim_v;
  options.is_fp8 = is_fp8;
  options.check_inputs = check_inputs;
  const nb::handle none = Py_None;
  const bool sparse = !indices.is_none();
  return step.decode({q, k_cache, sparse ? none : block_table, sparse ? none : cache_seqlens, indices,
                      topk_length, none, attn_sink},
                     options, {nb::none(), nb::none(), none, none}, none);
}

}  // namespace

void bind_step(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Step> step(
      module, "Step",
      R"(The plans of a step: one for each problem that its layers pose, made when first needed.

An engine makes one a step and calls its decode() once a layer. Plans stay right, if not balanced, when lengths
change, so that a step that is kept too long costs time only. The one exception is batch_invariant: with it each call
plans anew by itself.
A CUDA graph has plans of its own: the first decode() in it also captures the plan, which follows the lengths at
each replay.

threads    CPU: 0 means all
kernel     forces one of info()'s kernels (UnsupportedError where it cannot run); '': the library picks
stateless  plan and workspace are those of the call, or made for it alone: calls may come from several threads and
           streams at once. Otherwise one call at a time.)");
  module.def(
      "_Step",
      [](int threads, const std::string& kernel, bool stateless) { return Step(threads, kernel, stateless); },
      nb::kw_only(), "threads"_a = 0, "kernel"_a = "", "stateless"_a = false);
  define_constructor(step, "_Step",
                     nb::sig("def __init__(self, *, threads: int = 0, kernel: str = '', "
                             "stateless: bool = False) -> None"));
  step.def("decode", &decode, "q"_a, "kv_cache"_a, "block_table"_a = nb::none(),
           "cache_seqlens"_a = nb::none(), nb::kw_only(), "softmax_scale"_a, "v_dim"_a = 512,
           "causal"_a = false, "indices"_a = nb::none(), "topk_length"_a = nb::none(),
           "cu_seqlens_q"_a = nb::none(), "tokens"_a = nb::none(), "attn_sink"_a = nb::none(),
           "batch_invariant"_a = false, "dtype"_a = nb::none(), "out"_a = nb::none(), "lse"_a = nb::none(),
           "plan"_a = nb::none(), "workspace"_a = nb::none(), "stream"_a = nb::none(),
           "empty_lse"_a = -std::numeric_limits<float>::infinity(), "check_inputs"_a = false,
           "One layer; returns (out, lse). Arguments and errors are those of flashlatent.decode(); "
           "check_inputs "
           "is off unless it is given (None: on the CPU only).")
      .def(
          "decode_kv", &decode_kv, "q"_a, "key_cache"_a, "value_cache"_a, "block_table"_a, "cache_seqlens"_a,
          nb::kw_only(), "softmax_scale"_a, "causal"_a = false, "window"_a = 0, "soft_cap"_a = 0.0F,
          "alibi_slopes"_a = nb::none(), "key_scale"_a = nb::none(), "value_scale"_a = nb::none(),
          "cu_seqlens_q"_a = nb::none(), "tokens"_a = nb::none(), "attn_sink"_a = nb::none(),
          "batch_invariant"_a = false, "dtype"_a = nb::none(), "out"_a = nb::none(), "lse"_a = nb::none(),
          "plan"_a = nb::none(), "workspace"_a = nb::none(), "stream"_a = nb::none(),
          "empty_lse"_a = -std::numeric_limits<float>::infinity(), "check_inputs"_a = false,
          "One layer of separate or packed keys and values; returns (out, lse). Arguments and errors are "
          "those of flashlatent.decode_kv(); check_inputs is off unless it is given (None: on the CPU only).")
      .def("_decode_as_flash_mla", &decode_as_flash_mla, "q"_a, "k_cache"_a, "block_table"_a.none(),
           "cache_seqlens"_a.none(), "head_dim_v"_a, "softmax_scale"_a.none(), "causal"_a, "is_fp8_kvcache"_a,
           "indices"_a.none(), "attn_sink"_a.none(), "topk_length"_a.none(), "check_inputs"_a,
           "flashlatent.flash_mla's decode.")
      .def(
          "find",
          [](Step& step, const DecodeProblem& problem, nb::handle array) {
            return step.find(problem, Array::read("array", array, Dtype::kBF16).view().device);
          },
          "problem"_a, "array"_a, "The Plan for this problem on the device of this array.");
}

}  // namespace flashlatent::python
