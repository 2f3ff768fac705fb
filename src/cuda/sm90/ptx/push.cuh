// A store that some threads make, without a branch: where each of many values is tested, a branch for each
// takes longer than the store.
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

/// If `bits` has bits of `mask`: stores `value` at `address` in shared memory, to which it adds 4.
__device__ __forceinline__ void push_if(std::uint32_t bits, std::uint32_t mask, std::uint32_t& address,
                                        std::int32_t value) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .u32 x;\nand.b32 x, %1, %2;\nsetp.ne.u32 p, x, 0;\n"
      "@p st.shared.u32 [%0], %3;\n@p add.u32 %0, %0, 4;\n}"
      : "+r"(address)
      : "r"(bits), "r"(mask), "r"(value)
      : "memory");
}

/// The same, in global memory.
__device__ __forceinline__ void push_if(std::uint32_t bits, std::uint32_t mask, std::int32_t*& address,
                                        std::int32_t value) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .u32 x;\nand.b32 x, %1, %2;\nsetp.ne.u32 p, x, 0;\n"
      "@p st.global.u32 [%0], %3;\n@p add.u64 %0, %0, 4;\n}"
      : "+l"(address)
      : "r"(bits), "r"(mask), "r"(value)
      : "memory");
}

}  // namespace flashlatent::ptx
