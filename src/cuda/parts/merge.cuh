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

/// Called by a whole CTA; returns the merged lse and calls store(column, value) for each column. A part with
/// lse = -inf counts for nothing, whatever its out holds. Parts are added in order: the same bits every run.
/// `sink` is null or the head's.
template <class Store>
__device__ __forceinline__ float merge_row(const RowParts& parts, int columns, const float* sink,
                                           Store&& store) {
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
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    float value = 0;
#pragma unroll 8
    for (int i = 0; i < parts.count; ++i) {
      const float w = weight(i);
      const float x = parts.out[i * parts.out_stride + column];
      value += w == 0.0F ? 0.0F : w * x;
    }
    store(column, value * factor);
  }
  return lse;
}

}  // namespace flashlatent::parts
