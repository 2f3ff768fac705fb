// Stores to memory under a condition, without a branch.
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

__device__ __forceinline__ void store_4_bytes_if(bool condition, void* global, std::uint32_t value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.u32 [%1], %2;\n}" ::"r"(
                   static_cast<std::uint32_t>(condition)),
               "l"(global), "r"(value)
               : "memory");
}

__device__ __forceinline__ void store_2_bytes_if(bool condition, void* global, std::uint16_t value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.u16 [%1], %2;\n}" ::"r"(
                   static_cast<std::uint32_t>(condition)),
               "l"(global), "h"(value)
               : "memory");
}

}  // namespace flashlatent::ptx
