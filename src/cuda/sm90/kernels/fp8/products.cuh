// The two products of a block, with the tokens' bytes as A operand in registers: converted there, and never
// written back. Both take 1 instruction for two values from e4m3 to fp16. V takes 1 more for its ratio, and 1
// for four values, to bring two tokens' bytes of a column together.
#pragma once

#include "cuda/sm90/math/fp8_units.cuh"
#include "cuda/sm90/ptx/convert.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"

namespace flashlatent::fp8 {

/// A operands of four products of 16 along k.
using Operands = std::uint32_t[4][4];

/// d += A B over 64 of k; B is a tile of kRows rows.
template <class Element, int kRows>
__device__ __forceinline__ void multiply(float (&d)[kRows / 2], const Operands& a, std::uint64_t b,
                                         bool accumulate) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    ptx::Wgmma<Element, kRows>::template rs<false>(d, a[k], b + k * ptx::kStepAlongRow, accumulate || k > 0);
  }
}

/// A thread's bytes of its two tokens, `row` and eight rows on: 16 columns of K of each, or 8 of RoPE.
struct KeyBytes {
  uint4 low, high;

  template <int kTokenBytes = fp8_656::kTokenBytes>
  __device__ __forceinline__ static KeyBytes at(std::uint32_t row) {
    return {ptx::load_shared_16_bytes(row), ptx::load_shared_16_bytes(row + 8 * kTokenBytes)};
  }
};

/// Sixteen columns.
__device__ __forceinline__ void widen_keys(Operands& a, const KeyBytes& bytes) {
  const std::uint32_t low[4] = {bytes.low.x, bytes.low.y, bytes.low.z, bytes.low.w};
  const std::uint32_t high[4] = {bytes.high.x, bytes.high.y, bytes.high.z, bytes.high.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const ptx::HalfPairs first = ptx::widen_e4m3(low[k]), second = ptx::widen_e4m3(high[k]);
    a[k][0] = first.low;
    a[k][1] = second.low;
    a[k][2] = first.high;
    a[k][3] = second.high;
  }
}

/// RoPE's columns, unconverted: two products of 16 from each of the two KeyBytes.
__device__ __forceinline__ void take_rope(Operands& a, const KeyBytes& first, const KeyBytes& second) {
  auto put = [&](int k, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3) {
    a[k][0] = a0, a[k][1] = a1, a[k][2] = a2, a[k][3] = a3;
  };
  put(0, first.low.x, first.high.x, first.low.y, first.high.y);
  put(1, first.low.z, first.high.z, first.low.w, first.high.w);
  put(2, second.low.x, second.high.x, second.low.y, second.high.y);
  put(3, second.low.z, second.high.z, second.low.w, second.high.w);
}

/// Bytes of 16 columns of V of 64 tokens: two columns of two tokens a register. `row`: this lane's token of
/// the first 32, at the warp's columns.
struct ValueBytes {
  std::uint32_t pairs[2][4];

  template <int kTokenBytes = fp8_656::kTokenBytes>
  __device__ __forceinline__ static ValueBytes at(std::uint32_t row) {
    ValueBytes bytes;
    ptx::load_matrices_transposed(bytes.pairs[0], row);
    ptx::load_matrices_transposed(bytes.pairs[1], row + 32 * kTokenBytes);
    return bytes;
  }
};

/// These columns of 32 tokens as M, tokens as k: columns 2 i and 2 i + 1 become rows i and i + 8. `ratio[i]`
/// is of tokens 8 i + lane % 4 * 2 + {0, 1}. Operands of two products.
__device__ __forceinline__ void widen_values(std::uint32_t (*a)[4], const std::uint32_t (&bytes)[4],
                                             const std::uint32_t* ratio) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const ptx::HalfPairs columns = ptx::widen_e4m3(__byte_perm(bytes[i], 0, 0x3120));
    a[i / 2][i % 2 * 2] = sm90::times(columns.low, ratio[i]);
    a[i / 2][i % 2 * 2 + 1] = sm90::times(columns.high, ratio[i]);
  }
}
/// For 64 tokens.
__device__ __forceinline__ void widen_values(Operands& a, const ValueBytes& bytes,
                                             const std::uint32_t (&ratio)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) widen_values(a + half * 2, bytes.pairs[half], ratio + half * 4);
}
/// The same without ratios.
__device__ __forceinline__ void widen_values(std::uint32_t (*a)[4], const std::uint32_t (&bytes)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const ptx::HalfPairs columns = ptx::widen_e4m3(__byte_perm(bytes[i], 0, 0x3120));
    a[i / 2][i % 2 * 2] = columns.low;
    a[i / 2][i % 2 * 2 + 1] = columns.high;
  }
}
__device__ __forceinline__ void widen_values(Operands& a, const ValueBytes& bytes) {
#pragma unroll
  for (int half = 0; half < 2; ++half) widen_values(a + half * 2, bytes.pairs[half]);
}

}  // namespace flashlatent::fp8
