// Kernel parameters before they are used.
#pragma once

#include <cstdint>

namespace flashlatent::cuda::indexer {

/// Brings them to the constant cache: each first use of 64 bytes would wait for memory later.
template <class Parameters>
__device__ __forceinline__ void touch(const Parameters& parameters) {
  const auto at = threadIdx.x * 64;
  if (at >= sizeof(parameters)) return;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&parameters);
  asm volatile("" ::"r"(static_cast<std::uint32_t>(bytes[at])));
}

}  // namespace flashlatent::cuda::indexer
