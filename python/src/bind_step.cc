// flashlatent.Step: decode calls that plan when they need to.
#include <nanobind/stl/shared_ptr.h>

#include "python/src/bindings.h"
#include "python/src/constructor.h"
#include "python/src/cuda_stream.h"
#include "python/src/errors.h"
#include "python/src/step.h"

namespace flashlatent::python {

namespace {

nb::tuple decode(Step& step, DecodeArguments&& given) {
  return step.decode(std::move(given));
}

/// The drop-in's call, its arguments by position: fewer names to match, and defaults without Python code.
nb::tuple decode_as_flash_mla(Step& step, nb::handle q, nb::handle k_cache, nb::handle block_table,
                              nb::handle cache_seqlens, int head_dim_v, std::optional<float> softmax_scale,
                              bool causal, std::optional<bool> is_fp8, nb::handle indices,
                              nb::handle attn_sink, nb::handle topk_length, nb::handle extra_k_cache,
                              nb::handle extra_indices, nb::handle extra_topk_length, nb::handle out,
                              bool check_inputs, bool batch_invariant, nb::handle kv_scale,
                              nb::handle q_scale, bool scales_by_page,
                              std::optional<std::string_view> kv_format,
                              std::optional<std::string_view> scales,
                              std::optional<std::string_view> extra_kv_format) {
  const bool sparse = !indices.is_none();
  DecodeArguments given;
  given.q = q;
  given.kv_cache = k_cache;
  given.block_table = sparse ? given.block_table : block_table;
  given.cache_seqlens = sparse ? given.cache_seqlens : cache_seqlens;
  given.indices = indices;
  given.topk_length = topk_length;
  given.attn_sink = attn_sink;
  given.extra_kv_cache = extra_k_cache;
  given.extra_indices = extra_indices;
  given.extra_topk_length = extra_topk_length;
  given.kv_scale = kv_scale;
  given.q_scale = q_scale;
  given.out = nb::borrow(out);
  given.softmax_scale = softmax_scale.value_or(given.softmax_scale);
  given.default_scale = !softmax_scale.has_value();
  given.v_dim = head_dim_v;
  given.causal = causal;
  given.batch_invariant = batch_invariant;
  given.is_fp8 = is_fp8;
  given.v41_place = scales_by_page ? ScalePlace::kPage : ScalePlace::kToken;
  given.kv_format = kv_format;
  given.scales = scales;
  given.extra_kv_format = extra_kv_format;
  given.empty_lse = std::numeric_limits<float>::infinity();
  given.check_inputs = check_inputs;
  return step.decode(std::move(given));
}

/// The part of Step.prepare() (_step.py) that plans.
void schedule(Step& step, const DecodeProblem& problem, nb::handle lengths, nb::handle extra_lengths,
              nb::handle cu_seqlens_q, nb::handle like, nb::handle stream) {
  const Array given = Array::read("lengths", lengths);
  const Array extra = Array::read("extra_lengths", extra_lengths);
  const Array begins = Array::read("cu_seqlens_q", problem.query.ragged ? cu_seqlens_q : nb::none());
  const Device device = Array::read("cache_seqlens", like).view().device;
  const WorkStream work(like, device, stream);
  step.schedule(problem, {given.view(), extra.view(), begins.view()}, like, device, work.handle());
  work.finish();
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
calls_per_plan  how many calls read a plan: layers of one problem; 0: many. Few are not worth packing requests into
           parts, which a GPU takes long for (docs/python.md)
stateless  plan and workspace are those of the call, or made for it alone: calls may come from several threads and
           streams at once. Otherwise one call at a time
check_inputs  True: every call looks at its lengths and page numbers first, as flashlatent.decode() says; None: on
           the CPU only; False: calls that ask for it)");
  module.def(
      "_Step",
      [](int threads, const std::string& kernel, bool stateless, int calls_per_plan,
         std::optional<bool> check_inputs) {
        if (calls_per_plan < 0) {
          refuse("calls_per_plan is ", calls_per_plan, "; 0 (many) and positive numbers are accepted");
        }
        return Step(threads, kernel, stateless, calls_per_plan, check_inputs);
      },
      nb::kw_only(), "threads"_a = 0, "kernel"_a = "", "stateless"_a = false, "calls_per_plan"_a = 0,
      "check_inputs"_a.none() = false);
  define_constructor(step, module, "_Step");
  using namespace arguments;
  def_method(
      step, "decode", &decode, std::tuple_cat(kLatent, std::tuple(kCacheSeqlens)),
      std::tuple_cat(kProblem, kLatentProblem, kLatentCall, kCall),
      "One layer; returns (out, lse). Arguments and errors are those of flashlatent.decode(); "
      "check_inputs is off unless it or the Step's is given (None: on the CPU only). `plan` is what a Plan's "
      "schedule() wrote for this problem, of a stateless Step.");
  def_method(step, "decode_kv", &decode, std::tuple_cat(kKeyValue, std::tuple(required(kCacheSeqlens))),
             std::tuple_cat(kProblem, kKeyValueProblem, kKeyValueCall, kCall),
             "One layer of separate or packed keys and values; returns (out, lse). Arguments and errors are "
             "those of flashlatent.decode_kv(); check_inputs is off unless it or the Step's is given (None: "
             "on the CPU only). `plan` as in decode().");
  step.def_prop_ro("calls_per_plan", &Step::calls_per_plan);
  step.def("_schedule", &schedule, "problem"_a, "lengths"_a.none(), nb::kw_only(), "extra_lengths"_a.none(),
           "cu_seqlens_q"_a.none(), "like"_a, "stream"_a.none());
  step.def("_decode_as_flash_mla", &decode_as_flash_mla, "q"_a, "k_cache"_a, "block_table"_a.none(),
           "cache_seqlens"_a.none(), "head_dim_v"_a, "softmax_scale"_a.none(), "causal"_a,
           "is_fp8_kvcache"_a.none(), "indices"_a.none(), "attn_sink"_a.none(), "topk_length"_a.none(),
           "extra_k_cache"_a.none(), "extra_indices_in_kvcache"_a.none(), "extra_topk_length"_a.none(),
           "out"_a.none(), "check_inputs"_a, "enable_batch_invariant"_a, "kv_scale"_a = nb::none(),
           "q_scale"_a = nb::none(), "scales_by_page"_a = false, "kv_format"_a = nb::none(),
           "scales"_a = nb::none(), "extra_kv_format"_a = nb::none(), "flashlatent.flash_mla's decode.")
      .def(
          "find",
          [](Step& step, const DecodeProblem& problem, nb::handle array) {
            return step.find(problem, Array::read("array", array, Dtype::kBF16).view().device);
          },
          "problem"_a, "array"_a,
          R"(The Plan for a problem that the step has, or makes, on the device of an array.

problem  a Problem
array    of any package; it is not read)");
}

}  // namespace flashlatent::python
