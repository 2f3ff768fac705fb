// The outputs of a call in one buffer on the executor's device, and their copy on the CPU.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/device_memory.h"

namespace flashlatent::runtime {

class OutputMemory {
 public:
  /// An output on the device, and on the CPU.
  using Views = std::pair<TensorView*, TensorView*>;

  /// The device's views have shapes and no memory yet; each gets its place, and a view of its copy beside it.
  /// Absent ones get none.
  static Result<OutputMemory> create(std::span<const Views> outputs, const Executor& executor);

  Status poison(int byte, const Executor& executor) const;
  /// Waits, and copies to the CPU.
  Status fetch(const Executor& executor);
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  Buffer buffer_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace flashlatent::runtime
