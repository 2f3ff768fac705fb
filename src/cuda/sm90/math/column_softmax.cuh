// Online softmax of S^T: tokens are rows of the accumulator (spread over lanes and warps), query rows are its
// columns. A thread holds columns 8 j + column + {0, 1} of token rows `row` and row + 8 (math/tile.cuh).
#pragma once

#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::sm90 {

/// One value for each column of a thread: index 2 j + i is column 8 j + column + i.
template <int kRows>
struct ColumnValues {
  static constexpr int kCount = kRows / 4;
  float value[kCount];
  __device__ __forceinline__ float& operator[](int i) { return value[i]; }
  __device__ __forceinline__ float operator[](int i) const { return value[i]; }
};

/// Combines x over the eight lanes that hold the same columns.
template <class Combine>
__device__ __forceinline__ float across_token_lanes(float x, Combine combine) {
#pragma unroll
  for (int step = 4; step <= 16; step *= 2) x = combine(x, __shfl_xor_sync(0xffffffff, x, step));
  return x;
}

/// Sets scores to -inf: those of dead tokens, and those that the column does not see. `seen(n)`: a
/// TokenPrefix, from the block's first token on. (By way of its contains() ptxas makes other code of
/// kernels.)
template <int kRows, class Seen>
__device__ __forceinline__ void mask_columns(float (&s)[kRows / 2], std::uint64_t live, Fragment fragment,
                                             Seen seen) {
  const bool low_dead = !(live >> fragment.row & 1);
  const bool high_dead = !(live >> (fragment.row + 8) & 1);
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int end = seen(8 * j + fragment.column + i).end;
      if (low_dead || fragment.row >= end) s[4 * j + i] = -INFINITY;
      if (high_dead || fragment.row + 8 >= end) s[4 * j + 2 + i] = -INFINITY;
    }
  }
}

/// The maxima of this warp's tokens.
template <int kRows>
__device__ __forceinline__ ColumnValues<kRows> warp_max(const float (&s)[kRows / 2]) {
  ColumnValues<kRows> max;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      max[2 * j + i] = across_token_lanes(fmaxf(s[4 * j + i], s[4 * j + 2 + i]),
                                          [](float a, float b) { return fmaxf(a, b); });
    }
  }
  return max;
}

/// s = exp2(s - max); adds to this thread's share of the sums.
template <int kRows>
__device__ __forceinline__ void exponentials(float (&s)[kRows / 2], const ColumnValues<kRows>& max,
                                             ColumnValues<kRows>& sum) {
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float base = finite_or_zero(max[2 * j + i]);
      float& low = s[4 * j + i];
      float& high = s[4 * j + 2 + i];
      low = exp2_fast(low - base);
      high = exp2_fast(high - base);
      sum[2 * j + i] += low + high;
    }
  }
}

/// Stores P^T of this warp's 16 tokens into P: a swizzled tile of kRows query rows and 64 tokens.
template <class Element, int kRows>
__device__ __forceinline__ void store_probabilities(std::uint32_t tile, const float (&s)[kRows / 2],
                                                    int thread) {
  const int lane = thread % 32;
  const int unit = thread / 32 * 2 + lane / 8 % 2;  // of 8 tokens
  auto pair = [&](int j, int half) { return pack<Element>(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]); };
  if constexpr (kRows == 8) {
    ptx::store_matrices_transposed(tile + unit_offset(lane % 8, unit), {pair(0, 0), pair(0, 1)});
  } else {
#pragma unroll
    for (int j = 0; j < kRows / 8; j += 2) {
      const int row = 8 * (j + lane / 16) + lane % 8;
      ptx::store_matrices_transposed(tile + unit_offset(row, unit),
                                     {pair(j, 0), pair(j, 1), pair(j + 1, 0), pair(j + 1, 1)});
    }
  }
}

/// Sets outputs to NaN in rows that see a token of `partial` whose V is not finite (see math/mask.cuh). `o`
/// is the transposed fragment: chunk by chunk, dimensions down, query rows across.
template <class Element, int kRows, int kChunks, class Tiles, class Seen>
__device__ __forceinline__ void spread_poison(float (&o)[kChunks][kRows / 2], Tiles tile_of,
                                              std::uint64_t partial, Fragment fragment, Seen seen) {
  for (; partial != 0; partial &= partial - 1) {
    const int token = __ffsll(static_cast<long long>(partial)) - 1;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int dim = fragment.row + 8 * half;
        const std::uint32_t element = *reinterpret_cast<const std::uint16_t*>(
            tile_of(chunk).bytes + unit_offset(token, dim / 8) + dim % 8 * 2);
        if (!low_is_poison<Element>(element)) continue;
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (token < seen(8 * j + fragment.column + i).end) o[chunk][4 * j + 2 * half + i] = NAN;
          }
        }
      }
    }
  }
}

}  // namespace flashlatent::sm90
