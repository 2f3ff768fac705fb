#include "python/src/check.h"

#include "core/environment.h"
#include "flashlatent/check_inputs.h"
#include "python/src/bindings.h"
#include "python/src/cuda_stream.h"
#include "python/src/errors.h"
#include "python/src/memory.h"

namespace flashlatent::python {

void check_inputs(std::optional<bool> wanted, const DecodeProblem& problem, const DecodeInputs& inputs,
                  nb::handle q, Device device, void* stream) {
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
    check(status);
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
  check(to_status(offence));
}

bool checks_every_call() {
  return take(environment::checks_inputs());
}

}  // namespace flashlatent::python
