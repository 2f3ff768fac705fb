// flashlatent._native: queries of ranks gathered, and their partial results exchanged and merged, in one
// launch each.
#include <nanobind/stl/vector.h>

#include "flashlatent/exchange.h"
#include "python/src/array.h"
#include "python/src/bindings.h"
#include "python/src/cuda_stream.h"
#include "python/src/errors.h"

namespace flashlatent::python {

namespace {

std::vector<void*> pointers_of(const std::vector<std::uintptr_t>& memory) {
  std::vector<void*> pointers;
  for (std::uintptr_t address : memory) pointers.push_back(reinterpret_cast<void*>(address));
  return pointers;
}

nb::tuple exchange_arrays(nb::handle partial_out, nb::handle partial_lse, int rank,
                          const std::vector<std::uintptr_t>& memory, std::size_t bytes, nb::handle attn_sink,
                          nb::object out, nb::object lse, nb::handle stream) {
  const Array partial_out_array = Array::read("partial_out", partial_out);
  const Array partial_lse_array = Array::read("partial_lse", partial_lse);
  const Array sink_array = Array::read("attn_sink", attn_sink);
  const Array out_array = Array::output("out", out, {}, false);
  const Array lse_array = Array::output("lse", lse, {}, false);
  const TensorView& view = partial_out_array.view();
  const std::vector<void*> pointers = pointers_of(memory);
  Executor executor = executor_on(view.device, 0);
  const WorkStream work(partial_out, view.device, stream);
  executor.stream = work.handle();
  Status status;
  {
    nb::gil_scoped_release release;
    status =
        exchange_combine({.rank = rank, .memory = pointers, .bytes = bytes}, view, partial_lse_array.view(),
                         sink_array.view(), out_array.view(), lse_array.view(), executor);
  }
  check(status);
  work.finish();
  return nb::make_tuple(out, lse);
}

nb::object gather_arrays(nb::handle q, int rank, const std::vector<std::uintptr_t>& memory, std::size_t bytes,
                         nb::object gathered, nb::handle stream) {
  const Array q_array = Array::read("q", q);
  const Array gathered_array = Array::output("gathered", gathered, {}, false);
  const std::vector<void*> pointers = pointers_of(memory);
  Executor executor = executor_on(q_array.view().device, 0);
  const WorkStream work(q, q_array.view().device, stream);
  executor.stream = work.handle();
  Status status;
  {
    nb::gil_scoped_release release;
    status = exchange_gather({.rank = rank, .memory = pointers, .bytes = bytes}, q_array.view(),
                             gathered_array.view(), executor);
  }
  check(status);
  work.finish();
  return gathered;
}

}  // namespace

void bind_exchange(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "exchange_bytes", &exchange_bytes, "rows"_a, "v_dim"_a, "world"_a,
      "Bytes of each rank's memory for exchange_combine() of up to so many rows (batch * s_q * heads of a "
      "rank).");
  module.def("exchange_combine", &exchange_arrays, "partial_out"_a, "partial_lse"_a, nb::kw_only(), "rank"_a,
             "memory"_a, "bytes"_a, "attn_sink"_a = nb::none(), "out"_a, "lse"_a, "stream"_a = nb::none(),
             R"(Sends each rank its heads' partial results and merges this rank's; returns (out, lse).

memory   the address of each rank's memory in this process, zeroed before any rank's first call; `bytes` each
The rest as combine(), with partial_out bf16 or fp16 (batch, s_q, h_q, d_v) of this rank's tokens.)");
  module.def(
      "exchange_gather_bytes", &exchange_gather_bytes, "rows"_a, "d"_a, "world"_a,
      "Bytes of each rank's memory for exchange_gather() of up to so many rows of d elements of 16 bits.");
  module.def(
      "exchange_gather", &gather_arrays, "q"_a, nb::kw_only(), "rank"_a, "memory"_a, "bytes"_a, "gathered"_a,
      "stream"_a = nb::none(),
      R"(Sends every rank this rank's queries (batch, s_q, h, d), and writes those of all, rank by rank, to
gathered (batch, s_q, world * h, d); returns it. Memory as of exchange_combine().)");
}

}  // namespace flashlatent::python
