// CUDA runtime calls as Status, the current device as RAII.
#pragma once

#include <cuda_runtime_api.h>

#include "core/return_if_error.h"

namespace flashlatent::cuda {

Status to_status(cudaError_t error, const char* call);

/// Makes `device` current and puts the caller's back.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device)
      : error_(cudaGetDevice(&before_)), changed_(error_ == cudaSuccess && before_ != device) {
    if (changed_) error_ = cudaSetDevice(device);
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  Status status() const { return to_status(error_, "cudaSetDevice"); }

 private:
  int before_ = 0;
  cudaError_t error_;
  bool changed_;
};

}  // namespace flashlatent::cuda
