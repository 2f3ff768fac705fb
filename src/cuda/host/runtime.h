// CUDA runtime calls as Status, the current device as RAII.
#pragma once

#include <cuda_runtime_api.h>

#include "core/return_if_error.h"

namespace flashlatent::cuda {

Status to_status(cudaError_t error, const char* call);

/// Not ok in a child made by fork after this library has used CUDA: the driver only works in the parent.
/// Costs one load; DeviceGuard calls it, too.
Status usable_in_this_process();

/// Makes `device` current, and restores the caller's device at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : process_(usable_in_this_process()) {
    if (!process_.ok()) return;
    error_ = cudaGetDevice(&before_);
    changed_ = error_ == cudaSuccess && before_ != device;
    if (changed_) error_ = cudaSetDevice(device);
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  Status status() const { return process_.ok() ? to_status(error_, "cudaSetDevice") : process_; }

 private:
  Status process_;
  int before_ = 0;
  cudaError_t error_ = cudaSuccess;
  bool changed_ = false;
};

}  // namespace flashlatent::cuda
