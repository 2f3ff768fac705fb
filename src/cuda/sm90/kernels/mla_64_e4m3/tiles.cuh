// How bytes of e4m3 lie in shared memory, and V^T as A operand in registers.
//
// A block is 8 x 9 atoms of 8 tokens and 64 columns: the atoms of 8 tokens follow one another, then come
// those of the next 8. Q is 9 tiles of 64 rows and 64 columns, P one tile of kRows rows and 64 tokens. All
// have wgmma's 64-byte swizzle: unit u (16 bytes) of row r lies at unit u ^ (r / 2 % 4).
//
// A row's bytes of P are tokens in another order, and so are V's in the A operands that they meet: byte 32 k
// + 16 h + 4 c + 2 m + i is token 32 k + 16 h + 8 m + 2 c + i (c < 4; h, m, i < 2). Then a thread that has
// scores 8 j + 2 c + {0, 1} of a row stores words of four of them, and ldmatrix.trans, whose 16-bit elements
// are two columns of a token, gets 32 tokens in their order, one a lane.
#pragma once

#include <cstdint>

#include "cuda/sm90/load/atoms.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/ptx/wgmma_e4m3.cuh"

namespace flashlatent::mla_64_e4m3 {

using namespace sm90::atoms;

/// This warp's 16 columns of 64 tokens of V, as pairs of columns of a token.
struct ValueBytes {
  std::uint32_t pairs[2][4];

  /// `row`: of this lane's token of the first 32, at the warp's columns.
  template <int kChunks>
  __device__ __forceinline__ static ValueBytes at(std::uint32_t row) {
    ValueBytes bytes;
    ptx::load_matrices_transposed(bytes.pairs[0], row);
    ptx::load_matrices_transposed(bytes.pairs[1], row + 4 * kChunks * kAtomBytes);
    return bytes;
  }
};

/// A operands of two products of 32 tokens: columns 2 i and 2 i + 1 become rows i and i + 8.
using ValueOperands = std::uint32_t[2][4];
__device__ __forceinline__ void transpose(ValueOperands& a, const ValueBytes& bytes) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t first = bytes.pairs[k][2 * half], second = bytes.pairs[k][2 * half + 1];
      a[k][2 * half] = __byte_perm(first, second, 0x6420);
      a[k][2 * half + 1] = __byte_perm(first, second, 0x7531);
    }
  }
}

/// Two pairs of values as four e4m3, rounded to nearest; magnitudes beyond 448 become 448.
__device__ __forceinline__ std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  std::uint32_t word;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
}

}  // namespace flashlatent::mla_64_e4m3
