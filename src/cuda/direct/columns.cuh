// Sums and maxima over tokens: the eight lanes that hold a warp's 16 tokens of the same columns.
#pragma once

#include "cuda/etap/softmax.cuh"

namespace flashlatent::direct {

/// Two of a lane's four columns, of 16 rows: first_of_lane() and the next. Lanes that lie four apart take
/// different ones, the others have the same.
__device__ __forceinline__ int first_of_lane(int lane) {
  return lane / 4 % 2 * 8 + lane % 4 * 2;
}

/// Those two over all tokens, in 6 shuffles instead of 12.
template <class Combine>
__device__ __forceinline__ float2 over_tokens(const etap::ColumnValues<16>& values, int lane,
                                              Combine combine) {
  const bool upper = lane / 4 % 2 != 0;
  float x[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float mine = upper ? values[2 + i] : values[i], theirs = upper ? values[i] : values[2 + i];
    x[i] = combine(mine, __shfl_xor_sync(0xffffffff, theirs, 4));
#pragma unroll
    for (int step = 8; step <= 16; step *= 2) x[i] = combine(x[i], __shfl_xor_sync(0xffffffff, x[i], step));
  }
  return make_float2(x[0], x[1]);
}

}  // namespace flashlatent::direct
