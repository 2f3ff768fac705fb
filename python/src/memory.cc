#include "python/src/memory.h"

#include <cstdlib>
#include <new>

#include "python/src/errors.h"

namespace flashlatent::python {

namespace {

nb::object host_memory(std::size_t bytes, Memory& memory) {
  const std::size_t rounded = (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
  void* data = std::aligned_alloc(kMemoryAlignment, rounded);
  if (data == nullptr) throw std::bad_alloc();
  memory = {data, rounded};
  return nb::capsule(data, [](void* p) noexcept { std::free(p); });
}

}  // namespace

Memory memory_of(const char* name, const Array& array) {
  const TensorView& view = array.view();
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    if (view.shape[i] > 1 && view.strides[i] != stride) {
      refuse(name, " is ", to_string(view), "; a contiguous array is expected");
    }
    stride *= view.shape[i];
  }
  return {view.data, static_cast<std::size_t>(view.elements()) * size_of(view.dtype)};
}

bool is_aligned(Memory memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data) % kMemoryAlignment == 0;
}

Memory aligned_inside(Memory memory) {
  if (is_aligned(memory)) return memory;
  const std::size_t skip =
      kMemoryAlignment - reinterpret_cast<std::uintptr_t>(memory.data) % kMemoryAlignment;
  if (skip > memory.bytes) return {};
  return {static_cast<std::byte*>(memory.data) + skip, memory.bytes - skip};
}

Memory workspace_inside(const Array& array, std::size_t bytes) {
  const Memory whole = memory_of("workspace", array), inside = aligned_inside(whole);
  if (inside.bytes < bytes) {
    check({StatusCode::kExhausted, message("workspace has ", whole.bytes, " bytes; this problem needs ",
                                           bytes, " from a multiple of ", kMemoryAlignment, " on, ",
                                           with_alignment(bytes), " wherever the array begins")});
  }
  return inside;
}

Memory Buffer::at_least(std::size_t bytes, Device device, nb::handle like) {
  if (bytes <= memory_.bytes) return memory_;
  if (device.type == DeviceType::kCpu) {
    array_ = host_memory(bytes, memory_);
  } else {
    array_ = empty_like(like, {static_cast<std::int64_t>(with_alignment(bytes))}, "uint8");
    memory_ = aligned_inside(memory_of("workspace", Array::output("workspace", array_, {}, true)));
  }
  return memory_;
}

}  // namespace flashlatent::python
