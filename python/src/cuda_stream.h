// The CUDA stream that a call works on.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "flashlatent/tensor.h"

namespace flashlatent::python {

namespace nb = nanobind;

class WorkStream {
 public:
  /// `stream` if it is given (an integer handle, or a stream object of torch, CuPy or another with
  /// __cuda_stream__), else the current one of the package that `like` is from. Packages that have none (JAX)
  /// get CUDA's default stream.
  WorkStream(nb::handle like, Device device, nb::handle stream);

  void* handle() const { return handle_; }

  /// Waits for the work if like's package can't know of it: the package would read results or reuse memory
  /// too early.
  void finish() const;

 private:
  Device device_;
  void* handle_ = nullptr;
  bool unknown_ = false;
};

/// The id of the CUDA graph that `stream` of `device` is captured into; 0 if it is not.
unsigned long long capture_id(Device device, void* stream);

/// Copies bytes from the device to the host in the order of `stream`, and waits for the copy.
void wait_and_copy(Device device, void* stream, const void* from, void* to, std::size_t bytes);

}  // namespace flashlatent::python
