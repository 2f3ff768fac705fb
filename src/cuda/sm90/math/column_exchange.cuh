// Sums and maxima over tokens, for the eight lanes that hold the same columns of a warp's 16 tokens.
#pragma once

#include "cuda/sm90/math/column_softmax.cuh"

namespace flashlatent::sm90 {

/// Lanes exchange halves of their columns until each has two left: 14 shuffles for 64 rows, 10 for 32, 6 for
/// 16; shuffling each value would take 48, 24 and 12. With 8 rows a lane has two columns from the begin. The
/// two columns are first_of_lane() and the next one; if there are more lanes than columns, several lanes have
/// the same.
template <int kRows>
__device__ __forceinline__ int first_of_lane(int lane) {
  const int pair = kRows == 64   ? lane / 4 % 2 * 4 + lane / 8 % 2 * 2 + lane / 16
                   : kRows == 32 ? lane / 4 % 2 * 2 + lane / 8 % 2
                   : kRows == 16 ? lane / 4 % 2
                                 : 0;
  return pair * 8 + lane % 4 * 2;
}

/// Exchanges kCount values with the lane at distance kStep.
template <int kCount, int kStep, class Combine>
__device__ __forceinline__ void exchange(float* x, int lane, Combine combine) {
  const bool upper = lane / kStep % 2 != 0;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float mine = upper ? x[kCount / 2 + i] : x[i], theirs = upper ? x[i] : x[kCount / 2 + i];
    x[i] = combine(mine, __shfl_xor_sync(0xffffffff, theirs, kStep));
  }
}

/// Combines this lane's two columns over all tokens.
template <int kRows, class Combine>
__device__ __forceinline__ float2 over_tokens(ColumnValues<kRows> values, int lane, Combine combine) {
  static_assert(kRows == 8 || kRows == 16 || kRows == 32 || kRows == 64);
  float* x = values.value;
  if constexpr (kRows >= 16) exchange<kRows / 4, 4>(x, lane, combine);
  if constexpr (kRows >= 32) exchange<kRows / 8, 8>(x, lane, combine);
  if constexpr (kRows == 64) exchange<4, 16>(x, lane, combine);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int step = kRows / 2; step <= 16; step *= 2) {
      x[i] = combine(x[i], __shfl_xor_sync(0xffffffff, x[i], step));
    }
  }
  return make_float2(x[0], x[1]);
}

}  // namespace flashlatent::sm90
