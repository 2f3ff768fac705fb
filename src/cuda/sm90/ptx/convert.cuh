// Conversions between number formats.
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

/// Four e4m3 as two pairs of fp16: exact.
struct HalfPairs {
  std::uint32_t low, high;
};
__device__ __forceinline__ HalfPairs widen_e4m3(std::uint32_t bytes) {
  HalfPairs pairs;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(pairs.low), "=r"(pairs.high)
      : "r"(bytes));
  return pairs;
}

}  // namespace flashlatent::ptx
