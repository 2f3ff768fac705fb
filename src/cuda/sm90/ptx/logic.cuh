// Any function of the bits of three words, in one instruction. Compilers make two of some.
#pragma once

namespace flashlatent::ptx {

/// The function as a table: what it is of these three.
inline constexpr int kFirst = 0xF0, kSecond = 0xCC, kThird = 0xAA;
/// Bits in which the first two words are equal.
inline constexpr int kEqualBits = ~(kFirst ^ kSecond) & 0xFF;

template <int kTable>
__device__ __forceinline__ int logic(int first, int second, int third) {
  int result;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(first), "r"(second), "r"(third), "n"(kTable));
  return result;
}

}  // namespace flashlatent::ptx
