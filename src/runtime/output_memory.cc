#include "runtime/output_memory.h"

#include "core/return_if_error.h"

namespace flashlatent::runtime {

Result<OutputMemory> OutputMemory::create(std::span<const Views> outputs, const Executor& executor) {
  constexpr std::size_t kAlignment = 256;
  const auto bytes_of = [](const TensorView& view) -> std::size_t {
    if (!view.present()) return 0;
    return (view.elements() * size_of(view.dtype) + kAlignment - 1) / kAlignment * kAlignment;
  };
  OutputMemory memory;
  std::size_t size = 0;
  for (const auto& [there, here] : outputs) size += bytes_of(*there);
  FLASHLATENT_ASSIGN_OR_RETURN(memory.buffer_, Buffer::allocate(executor, size));
  memory.bytes_.resize(size);
  std::size_t offset = 0;
  for (const auto& [there, here] : outputs) {
    *here = *there;
    if (!there->present()) continue;
    there->data = static_cast<std::uint8_t*>(memory.buffer_.data()) + offset;
    here->data = memory.bytes_.data() + offset;
    here->device = {};
    offset += bytes_of(*there);
  }
  return memory;
}

Status OutputMemory::poison(int byte, const Executor& executor) const {
  return fill(buffer_.data(), byte, buffer_.size(), executor);
}

Status OutputMemory::fetch(const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(synchronize(executor));
  return copy_to_host(bytes_.data(), buffer_.data(), bytes_.size(), executor);
}

}  // namespace flashlatent::runtime
