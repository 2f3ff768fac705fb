// What the bindings of cache operations share.
#pragma once

#include <optional>
#include <string_view>

#include "python/src/array.h"
#include "python/src/bindings.h"
#include "python/src/cuda_stream.h"
#include "python/src/errors.h"

namespace flashlatent::python {

/// What 16-bit integers stand for, by the argument `dtype`.
inline std::optional<Dtype> sixteen_bits_of(std::optional<std::string_view> dtype) {
  if (!dtype) return {};
  return dtype_from_name(*dtype);
}

/// Runs operation(executor) where `like` is. On the CPU it may take a while, and lets other threads of Python
/// run.
template <class Operation>
void run_operation(nb::handle like, Device device, nb::handle stream, int threads, Operation operation) {
  Executor executor = executor_on(device, threads);
  const WorkStream work(like, device, stream);
  executor.stream = work.handle();
  Status status;
  if (device.type == DeviceType::kCpu) {
    nb::gil_scoped_release release;
    status = operation(executor);
  } else {
    status = operation(executor);
  }
  check(status);
  work.finish();
}

}  // namespace flashlatent::python
