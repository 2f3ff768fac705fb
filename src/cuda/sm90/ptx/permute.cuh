// Permutation of bytes.
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

/// Four of the eight bytes of a (0 to 3) and b (4 to 7): nibble i of `selector` names byte i. With the
/// nibble's upper bit set the result is eight copies of that byte's sign bit. (__byte_perm() is documented
/// for three bits.)
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t a, std::uint32_t b,
                                                       std::uint32_t selector) {
  std::uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
  return bytes;
}

}  // namespace flashlatent::ptx
