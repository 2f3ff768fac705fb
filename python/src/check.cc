#include "python/src/check.h"

#include "core/environment.h"
#include "flashlatent/check_inputs.h"
#include "python/src/bindings.h"
#include "python/src/cuda_stream.h"
#include "python/src/errors.h"
#include "python/src/memory.h"

namespace flashlatent::python {

namespace {

/// A status that calls requests `row`.
Status with_rows(const Status& status, std::string_view row) {
  constexpr std::string_view kRequest = "request ";
  std::string text = status.message();
  for (std::size_t at = 0; row != "request" && (at = text.find(kRequest, at)) != text.npos;
       at += row.size()) {
    text.replace(at, kRequest.size() - 1, row);
  }
  return {status.code(), text};
}

}  // namespace

void check_inputs(std::optional<bool> wanted, const DecodeProblem& problem, const DecodeInputs& inputs,
                  nb::handle q, Device device, void* stream, const char* row) {
  const bool on_cpu = device.type == DeviceType::kCpu;
  if (!wanted.value_or(on_cpu)) return;
  Executor executor = executor_on(device);
  executor.stream = stream;
  if (on_cpu) {
    Status status;
    {
      const nb::gil_scoped_release release;
      status = flashlatent::check_inputs(problem, inputs, executor);
    }
    check(with_rows(status, row));
    return;
  }
  if (capture_id(device, stream) != 0) {
    refuse(
        "check_inputs is True, and the stream is captured into a CUDA graph, where no call can wait; False "
        "is accepted there");
  }
  Buffer found;
  const Memory memory = found.at_least(kInputOffenceBytes, device, q);
  check(flashlatent::check_inputs(problem, inputs, memory, executor));
  InputOffence offence;
  wait_and_copy(device, stream, memory.data, &offence, sizeof(offence));
  check(with_rows(to_status(offence), row));
}

bool checks_every_call() {
  return take(environment::checks_inputs());
}

}  // namespace flashlatent::python
