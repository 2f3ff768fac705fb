// Sums and maxima over tokens: the eight lanes that hold a warp's 16 tokens of the same columns.
#pragma once

#include "cuda/etap/softmax.cuh"

namespace flashlatent::direct {

/// Lanes exchange halves of their columns, so that each is left with two: 14 shuffles for 64 rows instead of
/// 48. Those are of columns first_of_lane() and the next; of 16 rows four lanes have the same.
template <int kRows>
__device__ __forceinline__ int first_of_lane(int lane) {
  const int pair = kRows == 64 ? lane / 4 % 2 * 4 + lane / 8 % 2 * 2 + lane / 16 : lane / 4 % 2;
  return pair * 8 + lane % 4 * 2;
}

/// One exchange, of kCount values, with the lane at a distance of kStep.
template <int kCount, int kStep, class Combine>
__device__ __forceinline__ void exchange(float* x, int lane, Combine combine) {
  const bool upper = lane / kStep % 2 != 0;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float mine = upper ? x[kCount / 2 + i] : x[i], theirs = upper ? x[i] : x[kCount / 2 + i];
    x[i] = combine(mine, __shfl_xor_sync(0xffffffff, theirs, kStep));
  }
}

template <int kRows, class Combine>
__device__ __forceinline__ float2 over_tokens(etap::ColumnValues<kRows> values, int lane, Combine combine) {
  static_assert(kRows == 16 || kRows == 64);
  float* x = values.value;
  exchange<kRows / 4, 4>(x, lane, combine);
  if constexpr (kRows == 64) {
    exchange<8, 8>(x, lane, combine);
    exchange<4, 16>(x, lane, combine);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int step = 8; step <= 16; step *= 2) x[i] = combine(x[i], __shfl_xor_sync(0xffffffff, x[i], step));
    }
  }
  return make_float2(x[0], x[1]);
}

}  // namespace flashlatent::direct
