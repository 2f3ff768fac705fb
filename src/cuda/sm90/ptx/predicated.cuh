// A store that few threads make, without a branch: where each of many values is tested, a branch for each costs
// more than the test. Addresses are of shared memory, from shared_address().
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

/// If value - low <= more: stores `value` at `begin` plus the bytes at `count`, to which it adds 4.
__device__ __forceinline__ void append_if_between(std::uint32_t value, std::uint32_t low, std::uint32_t more,
                                                  std::uint32_t count, std::uint32_t begin) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .u32 x;\nsub.u32 x, %0, %1;\nsetp.le.u32 p, x, %2;\n"
      "@p atom.shared.add.u32 x, [%3], 4;\n@p add.u32 x, x, %4;\n@p st.shared.u32 [x], %0;\n}" ::"r"(value),
      "r"(low), "r"(more), "r"(count), "r"(begin)
      : "memory");
}

/// If `bits` has bits of `mask`: stores `value` at `address`, to which it adds 4.
__device__ __forceinline__ void push_if(std::uint32_t bits, std::uint32_t mask, std::uint32_t& address,
                                        std::uint32_t value) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .u32 x;\nand.b32 x, %1, %2;\nsetp.ne.u32 p, x, 0;\n"
      "@p st.shared.u32 [%0], %3;\n@p add.u32 %0, %0, 4;\n}"
      : "+r"(address)
      : "r"(bits), "r"(mask), "r"(value)
      : "memory");
}

}  // namespace flashlatent::ptx
