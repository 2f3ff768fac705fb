// Reads and writes of other CTAs' shared memory.
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

/// The word at an address from address_in().
__device__ __forceinline__ std::uint32_t load_from(std::uint32_t address) {
  std::uint32_t word;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
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
