// Merging the partial results of one query row by their lse (Flash-Decoding).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/partial.cuh"

namespace flashlatent::parts {

/// The parts of one row: part i lies `*_stride` elements after part i - 1.
template <class Stored = float>
struct RowParts {
  const Stored* out;
  const float* lse;
  const float2* units;  // as far apart as lse
  std::int64_t out_stride, lse_stride;
  int count;
};

/// What the parts of one row count: part i weighs exp(lse_i - base), all of them together 1 / factor.
struct RowWeights {
  float base;
  float lse;  // of the row
  float factor;

  __device__ __forceinline__ float of(const RowParts<>& parts, int i) const {
    return exp2_fast((parts.lse[i * parts.lse_stride] - base) * kLog2E);
  }
};

__device__ __forceinline__ RowWeights finish_weights(float base, float sum) {
  if (sum == 0.0F) return {base, -INFINITY, 0.0F};
  return {base, base + logf(sum), 1.0F / sum};
}

/// By the lanes of a warp together.
__device__ __forceinline__ RowWeights warp_weights(const RowParts<>& parts) {
  const int lane = threadIdx.x % 32;
  float max = -INFINITY;
#pragma unroll 4
  for (int i = lane; i < parts.count; i += 32) max = fmaxf(max, parts.lse[i * parts.lse_stride]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, step));
  RowWeights weights{finite_or_zero(max), 0, 0};
  float sum = 0;
  for (int i = lane; i < parts.count; i += 32) sum += weights.of(parts, i);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  return finish_weights(weights.base, sum);
}

/// Some parts of one row: their outputs, each by its weight exp(lse - base), and the weights' sum. Not yet
/// divided by it.
template <int kFours>
struct MergedParts {
  float4 out[kFours];
  float base;
  float sum;

  __device__ __forceinline__ void scale(float factor) {
    sum *= factor;
#pragma unroll
    for (float4& x : out) x = make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
  }
};

__device__ __forceinline__ void add_weighted(float4& sum, float weight, float4 x) {
  sum.x += weight * x.x;
  sum.y += weight * x.y;
  sum.z += weight * x.z;
  sum.w += weight * x.w;
}

/// Parts first, first + step, ... of the row: 16 bytes at `column` and every kApart columns from there on
/// that are below v_dim, kPieces of them. kAtOnce parts in one trip to memory: nothing of a part waits for
/// its lse. A part of weight 0 counts for nothing, whatever it holds.
template <int kPieces, int kApart, int kAtOnce, class Stored>
__device__ __forceinline__ auto merge_parts(const RowParts<Stored>& parts, int column, int v_dim, int first,
                                            int step) {
  constexpr bool kHasUnits = !std::is_same_v<Stored, float>;
  constexpr int kFours = kPieceFours<Stored>;
  using Piece = StoredPiece<Stored>;
  MergedParts<kPieces * kFours> merged;
  const Stored* out = parts.out + first * parts.out_stride + column;
  const float* part_lse = parts.lse + first * parts.lse_stride;
  const float2* part_units = parts.units + first * parts.lse_stride;
  auto is_right = [&](int piece) { return column + piece * kApart >= v_dim / 2; };
  const std::int64_t out_step = step * parts.out_stride, lse_step = step * parts.lse_stride;
  merged.base = -INFINITY;
  merged.sum = 0;
#pragma unroll
  for (float4& x : merged.out) x = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (int begin = first; begin < parts.count; begin += kAtOnce * step) {
    Piece values[kAtOnce][kPieces];
    float lse[kAtOnce];
    float units[kAtOnce][kPieces];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      lse[i] = -INFINITY;
      if (begin + i * step < parts.count) {
        lse[i] = *part_lse;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          if (column + piece * kApart >= v_dim) continue;
          values[i][piece] = *reinterpret_cast<const Piece*>(out + piece * kApart);
          if constexpr (kHasUnits)
            units[i][piece] = reinterpret_cast<const float*>(part_units)[is_right(piece)];
        }
      }
      out += out_step;
      part_lse += lse_step;
      part_units += lse_step;
    }
    float max = merged.base;
#pragma unroll
    for (float x : lse) max = fmaxf(max, x);
    const float base = finite_or_zero(max);
    if (begin > first) merged.scale(exp2_fast((merged.base - base) * kLog2E));
    merged.base = max;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float weight = exp2_fast((lse[i] - base) * kLog2E);
      if (weight == 0.0F) continue;
      merged.sum += weight;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        float4 fours[kFours];
        unpack_piece(fours, values[i][piece]);
        const float unit = kHasUnits ? weight * units[i][piece] : weight;
#pragma unroll
        for (int k = 0; k < kFours; ++k) add_weighted(merged.out[piece * kFours + k], unit, fours[k]);
      }
    }
  }
  return merged;
}

inline constexpr int kWeightsAtOnce = 128;

/// Called by a whole CTA of kThreads; returns the merged lse and calls store(column, value) for each column.
/// A part with lse = -inf counts for nothing, whatever its out holds. Parts are added in order: the same bits
/// every run. `sink` is null or the head's.
template <int kThreads, class Store>
__device__ __forceinline__ float merge_row(const RowParts<>& parts, int columns, const float* sink,
                                           Store&& store) {
  __shared__ float weights[kWeightsAtOnce];
  const RowWeights row = warp_weights(parts);
  float factor = row.factor;
  if (sink != nullptr) factor *= sink_factor(row.lse, __ldg(sink));

  constexpr int kColumns = 4;  // a thread, at once
  for (int first = 0; first < columns; first += kColumns * kThreads) {
    float value[kColumns] = {};
    for (int begin = 0; begin < parts.count; begin += kWeightsAtOnce) {
      const int count = min(kWeightsAtOnce, parts.count - begin);
      __syncthreads();
      for (int i = threadIdx.x; i < count; i += kThreads) weights[i] = row.of(parts, begin + i);
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
  return row.lse;
}

}  // namespace flashlatent::parts
