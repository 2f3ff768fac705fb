// Merging the partial results of one query row by their lse (Flash-Decoding).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/parts/epilogue.cuh"

namespace flashlatent::parts {

/// The parts of one row: part i lies `*_stride` floats after part i - 1.
struct RowParts {
  const float* out;
  const float* lse;
  std::int64_t out_stride, lse_stride;
  int count;
};

inline constexpr int kWeightsAtOnce = 128;

/// Called by a whole CTA of kThreads; returns the merged lse and calls store(column, value) for each column.
/// A part with lse = -inf counts for nothing, whatever its out holds. Parts are added in order: the same bits
/// every run. `sink` is null or the head's.
template <int kThreads, class Store>
__device__ __forceinline__ float merge_row(const RowParts& parts, int columns, const float* sink,
                                           Store&& store) {
  __shared__ float weights[kWeightsAtOnce];
  const int lane = threadIdx.x % 32;
  float max = -INFINITY;
  for (int i = lane; i < parts.count; i += 32) max = fmaxf(max, parts.lse[i * parts.lse_stride]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, step));
  const float base = finite_or_zero(max);
  auto weight = [&](int i) { return exp2f((parts.lse[i * parts.lse_stride] - base) * kLog2E); };
  float sum = 0;
  for (int i = lane; i < parts.count; i += 32) sum += weight(i);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);

  const float lse = sum == 0.0F ? -INFINITY : base + logf(sum);
  float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
  if (sink != nullptr) factor *= sink_factor(lse, __ldg(sink));

  constexpr int kColumns = 4;  // a thread, at once
  for (int first = 0; first < columns; first += kColumns * kThreads) {
    float value[kColumns] = {};
    for (int begin = 0; begin < parts.count; begin += kWeightsAtOnce) {
      const int count = min(kWeightsAtOnce, parts.count - begin);
      __syncthreads();
      for (int i = threadIdx.x; i < count; i += kThreads) weights[i] = weight(begin + i);
      __syncthreads();
      const float* out = parts.out + begin * parts.out_stride + first + threadIdx.x;
#pragma unroll 8
      for (int i = 0; i < count; ++i, out += parts.out_stride) {
        const float w = weights[i];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const float x = first + c * kThreads + threadIdx.x < columns ? out[c * kThreads] : 0.0F;
          value[c] += w == 0.0F ? 0.0F : w * x;
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = first + c * kThreads + threadIdx.x;
      if (column < columns) store(column, value[c] * factor);
    }
  }
  return lse;
}

}  // namespace flashlatent::parts
