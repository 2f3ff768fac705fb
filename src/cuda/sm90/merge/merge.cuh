// Merges the partial results of one query row by their lse (Flash-Decoding).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/merge/partial.cuh"

namespace flashlatent::sm90 {

/// The partial results, here parts, of one row; part i is `*_stride` elements after part i - 1.
template <class Stored = float, class Stride = std::int64_t>
struct RowParts {
  const Stored* out;
  const float* lse;
  const float2* units;  // as far apart as lse values
  Stride out_stride, lse_stride;
  int count;
};
/// The parts of a plan: 32 bits count the elements of a partial result.
template <class Stored>
using PlannedParts = RowParts<Stored, int>;

/// The weights of a row's parts: part i weighs exp(lse_i - base), and all of them together 1 / factor.
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

/// Computed by the lanes of a warp together.
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

/// A sum over some parts of one row: outputs times weights exp(lse - base), and the sum of weights, by which
/// outputs are not yet divided.
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

/// Parts that a warp can weigh at once: two lanes for each.
inline constexpr int kMostAtOnce = 16;

/// The weight of some parts of a row; lanes i and i + 16 have one of part i.
struct LaneWeight {
  float lse = -INFINITY;
  float unit = 1;  // fp16: the unit of the left half of the columns (lanes below 16) or of the right half

  /// Loads part `first` + i * `step`, if there is one.
  template <class Stored>
  __device__ __forceinline__ void load(const PlannedParts<Stored>& parts, int first, int step, int at_once) {
    const int lane = threadIdx.x % 32, i = lane % kMostAtOnce;
    const std::int64_t part = first + i * step;
    if (i >= at_once || part >= parts.count) return;
    lse = __ldcg(parts.lse + part * parts.lse_stride);
    if constexpr (!std::is_same_v<Stored, float>) {
      unit =
          __ldcg(reinterpret_cast<const float*>(parts.units + part * parts.lse_stride) + lane / kMostAtOnce);
    }
  }
};

/// Adds parts first, first + step, ... of the row, by a warp. A lane has 16 bytes at `column` and at every
/// kApart columns from there on that are below v_dim, kPieces in all. kAtOnce parts are in flight together: a
/// part's values do not wait for its lse, from which one or two lanes compute the weight for all. A part of
/// weight 0 does not count, whatever it holds.
template <int kPieces, int kApart, int kAtOnce, class Stored>
__device__ __forceinline__ auto merge_parts(const PlannedParts<Stored>& parts, int column, int v_dim,
                                            int first, int step) {
  static_assert(kAtOnce <= kMostAtOnce);
  constexpr int kFours = kPieceFours<Stored>;
  using Piece = StoredPiece<Stored>;
  MergedParts<kPieces * kFours> merged;
  const Stored* out = parts.out + static_cast<std::int64_t>(first) * parts.out_stride + column;
  const int out_step = step * parts.out_stride;
  merged.base = -INFINITY;
  merged.sum = 0;
#pragma unroll
  for (float4& x : merged.out) x = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (int begin = first; begin < parts.count; begin += kAtOnce * step) {
    LaneWeight mine;
    mine.load(parts, begin, step, kAtOnce);
    Piece values[kAtOnce][kPieces];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i * step < parts.count) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          if (column + piece * kApart < v_dim)
            values[i][piece] = __ldcg(reinterpret_cast<const Piece*>(out + piece * kApart));
        }
      }
      out += out_step;
    }
    float max = fmaxf(merged.base, mine.lse);
#pragma unroll
    for (int apart = kMostAtOnce / 2; apart > 0; apart /= 2) {
      max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, apart));
    }
    const float base = finite_or_zero(max);
    if (begin > first) merged.scale(exp2_fast((merged.base - base) * kLog2E));
    merged.base = max;
    const float weight = exp2_fast((mine.lse - base) * kLog2E);
    const std::uint32_t counting = __ballot_sync(0xffffffff, weight != 0.0F);
    const auto unit_of = [&](int i, int piece) {
      const bool is_right = column + piece * kApart >= v_dim / 2;
      return __shfl_sync(0xffffffff, weight * mine.unit, is_right ? i + kMostAtOnce : i);
    };
    float units[kAtOnce][kPieces];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) units[i][piece] = unit_of(i, piece);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if ((counting >> i & 1) == 0) continue;
      merged.sum += __shfl_sync(0xffffffff, weight, i);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        float4 fours[kFours];
        unpack_piece(fours, values[i][piece]);
#pragma unroll
        for (int k = 0; k < kFours; ++k)
          add_weighted(merged.out[piece * kFours + k], units[i][piece], fours[k]);
      }
    }
  }
  return merged;
}

inline constexpr int kWeightsAtOnce = 128;

/// Called by all kThreads threads of a CTA. Returns the merged lse and calls store(column, value) for each
/// column. A part with lse = -inf does not count, whatever its out holds. Parts are added in order: the same
/// bits in every run. `sink`: null or the head's.
template <int kThreads, class Store>
__device__ __forceinline__ float merge_row(const RowParts<>& parts, int columns, const float* sink,
                                           Store&& store) {
  __shared__ float weights[kWeightsAtOnce];
  const RowWeights row = warp_weights(parts);
  float factor = row.factor;
  if (sink != nullptr) factor *= sink_factor(row.lse, __ldg(sink));

  constexpr int kColumns = 4;  // of a thread at once
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

}  // namespace flashlatent::sm90
