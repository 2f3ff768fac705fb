// Writes to other CTAs' shared memory.
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

__device__ __forceinline__ std::uint32_t ctas_of_cluster() {
  std::uint32_t ctas;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ctas));
  return ctas;
}

/// Stores to an address from address_in().
__device__ __forceinline__ void store_at(std::uint32_t address, const uint4& words) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ __forceinline__ void store_at(std::uint32_t address, const uint2& words) {
  asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(words.x), "r"(words.y)
               : "memory");
}

}  // namespace flashlatent::ptx
