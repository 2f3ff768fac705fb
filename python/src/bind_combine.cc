// flashlatent.combine: merging partial results.
#include <nanobind/stl/optional.h>

#include "flashlatent/combine.h"
#include "python/src/array.h"
#include "python/src/bindings.h"
#include "python/src/cuda_stream.h"
#include "python/src/errors.h"

namespace flashlatent::python {

namespace {

nb::tuple combine_arrays(nb::handle partial_out, nb::handle partial_lse, nb::handle attn_sink, nb::object out,
                         nb::object lse, const std::optional<std::string>& dtype, nb::handle stream,
                         int threads) {
  std::optional<Dtype> bits;
  if (dtype) bits = dtype_from_name(*dtype);
  const Array partial_out_array = Array::read("partial_out", partial_out, bits);
  const Array partial_lse_array = Array::read("partial_lse", partial_lse);
  const Array sink_array = Array::read("attn_sink", attn_sink);
  const TensorView& view = partial_out_array.view();
  if (view.rank != 5) {
    refuse("partial_out is ", to_string(view), "; (n, batch, s_q, h_q, d_v) is expected");
  }
  const bool new_out = out.is_none(), new_lse = lse.is_none();
  if (new_out)
    out = empty_like(partial_out, {view.shape[1], view.shape[2], view.shape[3], view.shape[4]}, "float32");
  if (new_lse) lse = empty_like(partial_out, {view.shape[1], view.shape[3], view.shape[2]}, "float32");
  const Array out_array = Array::output("out", out, bits, new_out);
  const Array lse_array = Array::output("lse", lse, {}, new_lse);
  refuse_unused_dtype(bits, out_array.integers() || partial_out_array.integers());
  Executor executor = executor_on(view.device, threads);
  const WorkStream work(partial_out, view.device, stream);
  executor.stream = work.handle();
  Status status;
  {
    nb::gil_scoped_release release;
    status = combine(view, partial_lse_array.view(), sink_array.view(), out_array.view(), lse_array.view(),
                     executor);
  }
  check(status);
  work.finish();
  return nb::make_tuple(out, lse);
}

}  // namespace

void bind_combine(nb::module_& module) {
  using namespace nb::literals;
  module.def("combine", &combine_arrays, "partial_out"_a, "partial_lse"_a, nb::kw_only(),
             "attn_sink"_a = nb::none(), "out"_a = nb::none(), "lse"_a = nb::none(), "dtype"_a = nb::none(),
             "stream"_a = nb::none(), "threads"_a = 0,
             R"(Merges partial results of the same query rows by their lse; returns (out, lse).

lse = ln sum_i exp lse_i;  out = sum_i exp(lse_i - lse) out_i.

partial_out  fp32, bf16 or fp16 (n, batch, s_q, h_q, d_v), innermost stride 1
partial_lse  fp32 (n, batch, h_q, s_q); -inf: that part counts for nothing
attn_sink    fp32 (h_q): out is scaled by exp(lse) / (exp(lse) + exp(sink)), lse stays
out          bf16, fp16 or fp32 (batch, s_q, h_q, d_v); made as fp32 if not given
lse          fp32 (batch, h_q, s_q); made if not given
dtype        'bf16': 16-bit integers hold bf16
Raises InvalidArgumentError, which names the array that does not fit.)");
}

}  // namespace flashlatent::python
