// Views of memory that the caller owns: pointer, dtype, device, shape and strides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "flashlatent/dtype.h"

namespace flashlatent {

enum class DeviceType : std::uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

/// The name: "cpu", "cuda:1".
std::string to_string(Device device);

inline constexpr int kMaxRank = 5;
/// The rank of a view made of more than kMaxRank extents. Every operation refuses such a view.
inline constexpr int kTooManyDimensions = -1;

/// A view; `Pointer` is void* or const void*. Strides are 64-bit, in elements, and may have any value that
/// the callee accepts: pools of more than 2^31 elements are common. A default-constructed view means
/// "absent".
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  Dtype dtype = Dtype::kF32;
  Device device;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  BasicTensorView() = default;

  /// A contiguous (row-major) view. More than kMaxRank extents make a view that every operation refuses.
  BasicTensorView(Pointer data_, Dtype dtype_, std::initializer_list<std::int64_t> shape_,
                  Device device_ = {})
      : data(data_), dtype(dtype_), device(device_) {
    if (shape_.size() > kMaxRank) {
      rank = kTooManyDimensions;
      return;
    }
    for (std::int64_t extent : shape_) shape[rank++] = extent;
    std::int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      strides[i] = stride;
      stride *= shape[i];
    }
  }

  /// A mutable view is also a constant one.
  template <class Other>
  requires(std::is_same_v<Pointer, const void*>&& std::is_same_v<Other, void*>)
      BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data),
        dtype(other.dtype),
        device(other.device),
        rank(other.rank),
        shape(other.shape),
        strides(other.strides) {}

  bool present() const { return rank != 0; }

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

/// For messages: "bf16 (8, 64, 1, 576) strides (36864, 576, 576, 1) on cuda:0".
std::string to_string(const ConstTensorView& view);

/// A buffer of the caller (plan storage, workspace): on the executor's device, aligned to 256 bytes.
struct Memory {
  void* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace flashlatent
