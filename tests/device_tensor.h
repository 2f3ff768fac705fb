// Tensors of tests that run on every backend.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <vector>

#include "runtime/device_memory.h"

namespace flashlatent {

constexpr std::uint8_t kUntouched = 0xA5;

/// A tensor on the executor's device with a copy on the host, where tests write and read it.
class Tensor {
 public:
  Tensor(const Executor& executor, Dtype dtype, std::initializer_list<std::int64_t> shape, int padding = 0)
      : Tensor(executor, padded({nullptr, dtype, shape}, padding)) {}
  /// With the strides of `view`, in `offset` elements behind an aligned address.
  Tensor(const Executor& executor, const TensorView& view, int offset = 0)
      : executor_(executor), view_(view), offset_(offset * size_of(view.dtype)) {
    const std::int64_t elements = view_.elements() == 0 ? 0 : view_.shape[0] * view_.strides[0];
    bytes_.assign(elements * size_of(view_.dtype), kUntouched);
    Result<runtime::Buffer> made = runtime::Buffer::allocate(executor, offset_ + bytes_.size());
    if (!made.ok()) throw std::runtime_error(made.status().message());
    buffer_ = std::move(*made);
    view_.data = static_cast<std::uint8_t*>(buffer_.data()) + offset_;
    if (executor.backend == Backend::kCuda) view_.device = {DeviceType::kCuda, executor.device};
  }

  /// The host's copy of the row at these leading indices.
  template <class T = std::uint8_t>
  T* row(std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) {
    std::int64_t offset = i * view_.strides[0];
    if (view_.rank > 2) offset += j * view_.strides[1];
    if (view_.rank > 3) offset += k * view_.strides[2];
    return reinterpret_cast<T*>(bytes_.data() + offset * size_of(view_.dtype));
  }

  template <class T>
  void set(const std::vector<T>& values) {
    bytes_.assign(reinterpret_cast<const std::uint8_t*>(values.data()),
                  reinterpret_cast<const std::uint8_t*>(values.data() + values.size()));
  }

  TensorView upload() {
    EXPECT_TRUE(runtime::copy_to_device(view_.data, bytes_.data(), bytes_.size(), executor_).ok());
    return view_;
  }
  void download() {
    EXPECT_TRUE(runtime::synchronize(executor_).ok());
    EXPECT_TRUE(runtime::copy_to_host(bytes_.data(), view_.data, bytes_.size(), executor_).ok());
  }

  const TensorView& view() const { return view_; }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }
  Dtype dtype() const { return view_.dtype; }
  std::int64_t last() const { return view_.shape[view_.rank - 1]; }

 private:
  // Padding: rows (the last two dimensions' strides) and whatever is above them are longer than needed.
  static TensorView padded(TensorView view, int padding) {
    std::int64_t stride = 1;
    for (int i = view.rank - 1; i >= 0 && padding > 0; --i) {
      view.strides[i] = stride;
      stride = stride * view.shape[i] + (i == view.rank - 1 || i == 1 ? padding : 0);
    }
    return view;
  }

  Executor executor_;
  TensorView view_;
  std::size_t offset_;
  runtime::Buffer buffer_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace flashlatent
