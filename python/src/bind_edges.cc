// The edges of a layer: prepare_queries, finish_outputs.
#include <nanobind/stl/optional.h>

#include "flashlatent/edges.h"
#include "python/src/cache_operation.h"
#include "python/src/token_edges.h"

namespace flashlatent::python {

namespace {

nb::object prepare(nb::handle q, float norm, nb::handle positions, nb::handle table, std::string_view pairs,
                   std::string_view table_layout, nb::object out, std::optional<std::string_view> dtype,
                   nb::handle stream, int threads) {
  const std::optional<Dtype> bits = sixteen_bits_of(dtype);
  const Array q_array = Array::read("q", q, bits);
  const RotationArrays rotate({positions, table, pairs, table_layout});
  const TensorView& view = q_array.view();
  const bool make = out.is_none();
  if (make && view.rank == 3) out = empty_like(q, {view.shape[0], view.shape[1], view.shape[2]});
  if (make && view.rank == 4)
    out = empty_like(q, {view.shape[0], view.shape[1], view.shape[2], view.shape[3]});
  const Array out_array = Array::output("out", out, bits, make);
  refuse_unused_dtype(bits, q_array.integers());
  run_operation(q, view.device, stream, threads, [&](const Executor& executor) {
    return prepare_queries(view, norm, rotate.rotation, out_array.view(), executor);
  });
  return out;
}

void finish(nb::handle out, nb::handle positions, nb::handle table, std::string_view pairs,
            std::string_view table_layout, nb::handle rotated, nb::handle codes, nb::handle scales,
            std::string_view column_order, std::optional<std::string_view> dtype, nb::handle stream,
            int threads) {
  const std::optional<Dtype> bits = sixteen_bits_of(dtype);
  const Array out_array = Array::read("out", out, bits);
  const RotationArrays rotate({positions, table, pairs, table_layout});
  const Array rotated_array = Array::output("rotated", rotated, bits);
  const Array codes_array = Array::output("codes", codes);
  const Array scales_array = Array::output("scales", scales);
  const auto columns = static_cast<OutputColumns>(choice("column_order", column_order, "heads", "tiles"));
  refuse_unused_dtype(bits, out_array.integers() || rotated_array.integers());
  const TensorView& view = out_array.view();
  run_operation(out, view.device, stream, threads, [&](const Executor& executor) {
    return finish_outputs(view, rotate.rotation, rotated_array.view(),
                          {codes_array.view(), scales_array.view(), columns}, executor);
  });
}

}  // namespace

void bind_edges(nb::module_& module) {
  using namespace nb::literals;
  module.def("prepare_queries", &prepare, "q"_a, nb::kw_only(), "norm"_a = 0.0F, "positions"_a = nb::none(),
             "table"_a = nb::none(), "pairs"_a = "gptj", "table_layout"_a = "halves", "out"_a = nb::none(),
             "dtype"_a = nb::none(), "stream"_a = nb::none(), "threads"_a = 0,
             R"(Normalises and rotates queries, in fp32 with one rounding at the end; returns `out`.

q             bf16 or fp16 (tokens, h_q, d) or (batch, s_q, h_q, d); d a multiple of 8 up to 1,024; any strides but the
              innermost
norm          epsilon of an RMS norm over each head, without a weight; 0: no norm
positions     int32 or int64 (tokens) or (batch, s_q); None: no rotation
table         fp32 or bf16 (positions, columns): the last `columns` of each head are rotated; a multiple of 16
pairs         'gptj': columns 2 i and 2 i + 1 turn together; 'neox': i and i + columns / 2
table_layout  'halves': a row is all cosines, then all sines (vLLM); 'interleaved': one after the other (SGLang)
out           as q, may be q itself; made if not given
dtype         'bf16': 16-bit integers hold bf16
A position outside of the table is refused on the CPU; on CUDA the rotated columns become NaN.
Raises InvalidArgumentError for what does not fit, by name.)");
  module.def("finish_outputs_into", &finish, "out"_a, nb::kw_only(), "positions"_a = nb::none(),
             "table"_a = nb::none(), "pairs"_a = "gptj", "table_layout"_a = "halves",
             "rotated"_a = nb::none(), "codes"_a = nb::none(), "scales"_a = nb::none(),
             "column_order"_a = "heads", "dtype"_a = nb::none(), "stream"_a = nb::none(), "threads"_a = 0,
             R"(finish_outputs() into the caller's arrays.

out           bf16 or fp16 (tokens, h_q, v_dim) or (batch, s_q, h_q, v_dim)
rotated       as out, may be out itself; None: not written
codes         uint8 or float8_e4m3fn (tokens, groups, h_q / groups * v_dim), any strides but the innermost; None: no
              FP8 output
scales        contiguous (groups, h_q / groups * v_dim / 128, tokens rounded up to a multiple of 4): fp32, a scale for
              128 columns, or int32, four ue8m0 bytes for 32 columns each
column_order  'heads': a group's columns head by head; 'tiles': 32 columns of each head, then the next 32 of each, with
              int32 scales
positions, table, pairs, table_layout, dtype  as in prepare_queries())");
}

}  // namespace flashlatent::python
