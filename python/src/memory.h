// Plan storage and workspace: aligned buffers, on the CPU or from the allocator of the caller's package.
#pragma once

#include "flashlatent/tensor.h"
#include "python/src/array.h"

namespace flashlatent::python {

inline constexpr std::size_t kMemoryAlignment = 256;

/// With room for memory that is not aligned.
inline std::size_t with_alignment(std::size_t bytes) {
  return bytes == 0 ? 0 : bytes + kMemoryAlignment;
}

/// A contiguous array that the caller brought.
Memory memory_of(const char* name, const Array& array);

bool is_aligned(Memory memory);

/// Its aligned inside, shorter by what lies before it.
Memory aligned_inside(Memory memory);

/// The aligned inside of a workspace that the caller brought. ExhaustedError: it has fewer than `bytes`.
Memory workspace_inside(const Array& array, std::size_t bytes);

/// A buffer that grows and never shrinks.
class Buffer {
 public:
  /// At least `bytes`, aligned, on `device`; what it held before is lost if it grows. A CUDA buffer comes
  /// from the allocator of like's package.
  Memory at_least(std::size_t bytes, Device device, nb::handle like);

  Memory memory() const { return memory_; }

 private:
  nb::object array_;  // owns the memory
  Memory memory_;
};

}  // namespace flashlatent::python
