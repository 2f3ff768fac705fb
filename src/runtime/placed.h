// Places a tensor from the CPU on an executor's device.
#pragma once

#include <utility>
#include <vector>

#include "core/decode_inputs.h"
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

/// The edges of a call's inputs: DecodeInputs or SparsePrefillInputs.
template <class Inputs>
Status place_edges(const Inputs& host, Inputs& device, std::vector<Buffer>& buffers,
                   const Executor& executor) {
  device.q_norm = host.q_norm;
  for (const RotationInput<Inputs>& input : kRotationInputs<Inputs>) {
    const Rotation& given = host.*input.rotation;
    Rotation& placed = device.*input.rotation;
    placed = given;
    FLASHLATENT_RETURN_IF_ERROR(place(given.positions, placed.positions, buffers, executor));
    FLASHLATENT_RETURN_IF_ERROR(place(given.table, placed.table, buffers, executor));
  }
  return {};
}

}  // namespace flashlatent::runtime
