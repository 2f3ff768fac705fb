// Places a tensor from the CPU on an executor's device.
#pragma once

#include <utility>
#include <vector>

#include "dispatch/select.h"
#include "runtime/device_memory.h"

namespace flashlatent::runtime {

/// Copies the whole span of memory of `host`; `buffers` own the copy. An absent view stays absent.
inline Status place(const ConstTensorView& host, ConstTensorView& device, std::vector<Buffer>& buffers,
                    const Executor& executor) {
  device = host;
  if (!host.present()) return {};
  std::int64_t elements = host.elements() == 0 ? 0 : 1;
  for (int i = 0; i < host.rank && elements > 0; ++i) elements += (host.shape[i] - 1) * host.strides[i];
  const std::size_t bytes = elements * size_of(host.dtype);
  FLASHLATENT_ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(executor, bytes));
  FLASHLATENT_RETURN_IF_ERROR(copy_to_device(buffer.data(), host.data, bytes, executor));
  device.data = buffer.data();
  device.device = device_of(executor);
  buffers.push_back(std::move(buffer));
  return {};
}

}  // namespace flashlatent::runtime
