// Reads of other CTAs' shared memory.
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

/// The word at an address from address_in().
__device__ __forceinline__ std::uint32_t load_from(std::uint32_t address) {
  std::uint32_t word;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

}  // namespace flashlatent::ptx
