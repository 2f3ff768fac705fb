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
  module.def("exchange_bytes", &exchange_bytes, "rows"_a, "v_dim"_a, "world"_a,
             R"(Bytes of each rank's memory for exchange_combine().

rows   at most so many query rows of a rank's own heads, batch * s_q * heads
v_dim  elements of an output
world  ranks
Raises InvalidArgumentError for a size out of range.)");
  module.def("exchange_combine", &exchange_arrays, "partial_out"_a, "partial_lse"_a, nb::kw_only(), "rank"_a,
             "memory"_a, "bytes"_a, "attn_sink"_a = nb::none(), "out"_a, "lse"_a, "stream"_a = nb::none(),
             R"(Sends each rank its heads' partial results and merges this rank's; returns (out, lse).

partial_out  bf16 or fp16 (batch, s_q, h_q, d_v): all heads, of this rank's tokens; rank r merges heads r * h to
             (r + 1) * h, h = h_q / ranks
partial_lse  fp32 (batch, h_q, s_q)
rank         this rank's number
memory       a sequence of integers: the address of each rank's memory in this process, zeroed before any rank's first
             call
bytes        of each memory, see exchange_bytes()
attn_sink    fp32 (h), of this rank's heads, as in combine()
out          bf16, fp16 or fp32 (batch, s_q, h, d_v)
lse          fp32 (batch, h, s_q)
stream       CUDA: an integer handle or a stream object; the current one of partial_out's package if not given
On CUDA alone. Every rank makes the same calls in the same order. Raises InvalidArgumentError, which names the array
that does not fit, UnavailableError where GPUs cannot write each other's memory.)");
  module.def("exchange_gather_bytes", &exchange_gather_bytes, "rows"_a, "d"_a, "world"_a,
             R"(Bytes of each rank's memory for exchange_gather().

rows   at most so many query rows of a rank's own heads, batch * s_q * heads
d      elements of 16 bits of a row
world  ranks
Raises InvalidArgumentError for a size out of range.)");
  module.def(
      "exchange_gather", &gather_arrays, "q"_a, nb::kw_only(), "rank"_a, "memory"_a, "bytes"_a, "gathered"_a,
      "stream"_a = nb::none(),
      R"(Sends every rank this rank's queries, and writes those of all, rank by rank; returns `gathered`.

q         elements of 16 bits, or bytes (batch, s_q, h, d), innermost stride 1
rank, memory, bytes  as in exchange_combine(); bytes see exchange_gather_bytes()
gathered  q's dtype (batch, s_q, ranks * h, d)
stream    CUDA: an integer handle or a stream object; the current one of q's package if not given
On CUDA alone. Raises InvalidArgumentError, which names the array that does not fit.)");
}

}  // namespace flashlatent::python
