// flashlatent.sparse_prefill: many query tokens, each with indices of its own.
#include <nanobind/stl/optional.h>

#include "dispatch/sparse_prefill.h"
#include "python/src/bindings.h"
#include "python/src/cache_operation.h"
#include "python/src/check.h"
#include "python/src/decode_arguments.h"
#include "python/src/layer_edges.h"
#include "python/src/memory.h"

namespace flashlatent::python {

namespace {

nb::tuple sparse_prefill_arrays(
    nb::handle q, nb::handle kv, nb::handle indices, float softmax_scale, int v_dim, nb::handle topk_length,
    nb::handle attn_sink, nb::handle extra_kv_cache, nb::handle extra_indices, nb::handle extra_topk_length,
    std::optional<int> page_size, std::optional<int> extra_page_size, std::optional<std::string_view> dtype,
    nb::handle kv_scale, std::optional<std::string_view> kv_format, std::optional<std::string_view> scales,
    std::optional<std::string_view> extra_kv_format, nb::object out, nb::object max_logits, nb::object lse,
    nb::handle workspace, nb::handle stream, int threads, const std::string& kernel,
    std::optional<bool> wanted_check, nb::handle q_rope, float q_norm, nb::handle q_rotate,
    nb::handle out_rotate, nb::handle out_fp8, nb::handle q_scale, std::string_view products,
    bool with_max_logits) {
  const std::optional<Dtype> bits = sixteen_bits_of(dtype);
  const Array q_array = Array::read("q", q, bits);
  const Array rope_array = Array::read("q_rope", q_rope, bits);
  const Array kv_array = Array::read("kv", kv, bits);
  const Array indices_array = Array::read("indices", indices);
  const Array length_array = Array::read("topk_length", topk_length);
  const Array sink_array = Array::read("attn_sink", attn_sink);
  const Array extra_array = Array::read("extra_kv_cache", extra_kv_cache, bits);
  const Array extra_indices_array = Array::read("extra_indices", extra_indices);
  const Array extra_length_array = Array::read("extra_topk_length", extra_topk_length);
  const Array scale_array = Array::read("kv_scale", kv_scale);
  const Array q_scale_array = Array::read("q_scale", q_scale);
  const LayerEdgeArrays edges(q_rotate, out_rotate, out_fp8);
  refuse_unused_dtype(bits, q_array.integers() || kv_array.integers() || extra_array.integers());
  SparsePrefillInputs inputs;
  inputs.q = q_array.view();
  inputs.q_rope = rope_array.view();
  const CacheFormat format = cache_format(kv_format, scales);
  const std::optional<KvFormat> extra_format = optional_format(extra_kv_format, "extra_kv_format");
  inputs.kv = latent_cache("kv", kv_array.view(), "page_size", page_size, format.format);
  inputs.indices = indices_array.view();
  inputs.topk_length = length_array.view();
  inputs.attn_sink = sink_array.view();
  inputs.extra_kv_cache = latent_cache("extra_kv_cache", extra_array.view(), "extra_page_size",
                                       extra_page_size, extra_format ? extra_format : format.format);
  inputs.extra_indices = extra_indices_array.view();
  inputs.extra_topk_length = extra_length_array.view();
  inputs.kv_scale = scale_array.view();
  inputs.q_scale = q_scale_array.view();
  inputs.q_norm = q_norm;
  inputs.q_rotate = edges.q.rotation;
  inputs.out_rotate = edges.out.rotation;
  const SparsePrefillOptions options{.softmax_scale = softmax_scale,
                                     .v_dim = v_dim,
                                     .format = format,
                                     .extra_format = extra_format,
                                     .out_edge = !out_fp8.is_none(),
                                     .max_logits = with_max_logits,
                                     .products = take(products_from_name(products))};

  const Device device = inputs.q.device;
  Executor executor = executor_on(device, threads, kernel);
  const WorkStream work(q, device, stream);
  executor.stream = work.handle();
  const SparsePrefillCall call = take(as_decode(inputs, options, device));
  check_inputs(wanted_check, call.problem, call.inputs, q, device, work.handle(), "query token");

  const std::int64_t s_q = inputs.q.shape[0], h_q = inputs.q.shape[1];
  const bool new_out = out.is_none() && out_fp8.is_none(), new_max = with_max_logits && max_logits.is_none(),
             new_lse = lse.is_none();
  if (new_out) out = empty_like(q, {s_q, h_q, v_dim}, call.problem.query.e4m3 ? "bfloat16" : nullptr);
  if (new_max) max_logits = empty_like(q, {s_q, h_q}, "float32");
  if (new_lse) lse = empty_like(q, {s_q, h_q}, "float32");
  const std::optional<Dtype> out_bits = call.problem.query.e4m3 ? Dtype::kBF16 : bits;
  const Array out_array = Array::output("out", out, out_bits, new_out);
  const Array max_array = Array::output("max_logits", max_logits, {}, new_max);
  const Array lse_array = Array::output("lse", lse, {}, new_lse);
  const SparsePrefillOutputs outputs{out_array.view(), max_array.view(), lse_array.view(), edges.fp8()};

  const std::size_t bytes = take(sparse_prefill_workspace_bytes(inputs, outputs, options, executor));
  Buffer own;
  std::optional<Array> given;
  if (!workspace.is_none()) given.emplace(Array::output("workspace", workspace));
  const Memory memory = given ? workspace_inside(*given, bytes) : own.at_least(bytes, device, q);
  Status status;
  {
    nb::gil_scoped_release release;
    status = sparse_prefill(inputs, outputs, options, memory, executor);
  }
  check(status);
  work.finish();
  return nb::make_tuple(out, max_logits, lse);
}

}  // namespace

void bind_sparse_prefill(nb::module_& module) {
  using namespace nb::literals;
  module.def("sparse_prefill", &sparse_prefill_arrays, "q"_a, "kv"_a, "indices"_a, nb::kw_only(),
             "softmax_scale"_a, "v_dim"_a = 512, "topk_length"_a = nb::none(), "attn_sink"_a = nb::none(),
             "extra_kv_cache"_a = nb::none(), "extra_indices"_a = nb::none(),
             "extra_topk_length"_a = nb::none(), "page_size"_a = nb::none(), "extra_page_size"_a = nb::none(),
             "dtype"_a = nb::none(), "kv_scale"_a = nb::none(), "kv_format"_a = nb::none(),
             "scales"_a = nb::none(), "extra_kv_format"_a = nb::none(), "out"_a = nb::none(),
             "max_logits"_a = nb::none(), "lse"_a = nb::none(), "workspace"_a = nb::none(),
             "stream"_a = nb::none(), "threads"_a = 0, "kernel"_a = "", "check_inputs"_a = nb::none(),
             "q_rope"_a = nb::none(), "q_norm"_a = 0.0F, "q_rotate"_a = nb::none(),
             "out_rotate"_a = nb::none(), "out_fp8"_a = nb::none(), "q_scale"_a = nb::none(),
             "products"_a = "auto", "with_max_logits"_a = true,
             R"(Sparse prefill; returns (out, max_logits, lse).

Each query token attends to the tokens that its own indices name: S = softmax_scale * q . K^T over these,
out = softmax(S) . V with V the first v_dim elements of each row, max_logits = max S, lse = ln sum exp S.

q              bf16 or fp16 (s_q, h_q, d), s_q up to 2^20; with an e4m3 cache also uint8 or float8_e4m3fn, e4m3
q_rope         the last 64 columns of a query of 576, (s_q, h_q, 64), if q has the first 512
kv             q's dtype (s_kv, 1, d); or a paged cache in any format, as flashlatent.decode() takes it: (pages,
               page_size, 1, d), or (pages, page_bytes) with page_size=
indices        int32 (s_q, 1, topk): rows of kv, or page * page_size + offset; negative ones and those past the
               end are skipped; one that is named twice counts twice
softmax_scale  no default, see flashlatent.decode()
topk_length    int32 (s_q): only so many of a query token's indices are read, 0 to topk
attn_sink      fp32 (h_q): out is scaled by exp(lse) / (exp(lse) + exp(sink)); max_logits and lse stay
extra_kv_cache, extra_indices, extra_topk_length  a second, paged cache in the same softmax, int32 (s_q, 1, extra
               topk) and int32 (s_q)
page_size, extra_page_size, kv_format, scales, extra_kv_format  as in flashlatent.decode()
dtype          'bf16': 16-bit integer arrays hold bf16
kv_scale       fp32 (1), of an e4m3 cache: an element of kv (and extra_kv_cache) is e4m3 * scale; 1 if not given
q_scale        fp32 (1) or (h_q), of an e4m3 q; 1 if not given
products       of an e4m3 cache, as in flashlatent.decode()
out            q's dtype (s_q, h_q, v_dim), bf16 where q is e4m3; made if not given. 0 where a query token has nothing to
               attend to
max_logits, lse  fp32 (s_q, h_q), natural; made if not given. -inf where a query token has nothing to attend to
with_max_logits  False: no max_logits (None is returned). More kernels then take FP8 caches, with edges in their own
               passes
q_norm, q_rotate, out_rotate, out_fp8  as in flashlatent.decode(), with positions (s_q); on a GPU each edge that the
               kernel does not have in its own passes is a launch
workspace, stream, threads, kernel, check_inputs  as in flashlatent.decode()

On a GPU d is 576 or 512 and v_dim 512, and a call without edges takes no workspace; what no kernel takes raises
UnsupportedError, which says why. Raises InvalidArgumentError (a ValueError), which names the array that does not fit.)");
}

}  // namespace flashlatent::python
