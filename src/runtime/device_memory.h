// Memory on either backend, for programs and tests (the library itself never allocates).
#pragma once

#include <cstddef>
#include <utility>

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent::runtime {

/// An allocation, aligned to 256 bytes and freed with the object; on the CPU plain memory.
class Buffer {
 public:
  static Result<Buffer> allocate(const Executor& executor, std::size_t bytes);

  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  Memory memory() const { return {data_, bytes_}; }

 private:
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(backend_, other.backend_);
  }

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Backend backend_ = Backend::kCpu;
};

/// Ordered on the executor's stream. The host memory may be reused when the call returns.
Status copy_to_device(void* device, const void* host, std::size_t bytes, const Executor& executor);
Status copy_to_host(void* host, const void* device, std::size_t bytes, const Executor& executor);
/// Copies within the executor's device; enqueued.
Status copy_on_device(void* to, const void* from, std::size_t bytes, const Executor& executor);
/// Sets every byte of [device, device + bytes) to `value`.
Status fill(void* device, int value, std::size_t bytes, const Executor& executor);
/// Waits for all work on the executor's stream and returns kernels' errors.
Status synchronize(const Executor& executor);

}  // namespace flashlatent::runtime
