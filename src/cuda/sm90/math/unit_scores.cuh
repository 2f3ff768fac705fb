// Softmax over scores in units of tokens (fp8_units.cuh), in place of math/softmax.cuh.
//
// A probability meets V in the token's unit, so fp16 must hold the product of probability and unit. The base
// is therefore computed from scores and units together. Sums leave the units out.
#pragma once

#include "cuda/sm90/math/fp8_units.cuh"
#include "cuda/sm90/math/softmax.cuh"

namespace flashlatent::sm90 {

/// P times its unit is scaled to at most 2^kLargestUnitP. A later product may be larger by 2^kUnitSlack
/// before outputs are rescaled. Below, fp16 has 33 binades left, and 11 bits where bf16 has 8.
inline constexpr float kLargestUnitP = 9;
inline constexpr float kUnitSlack = 6;

/// The units of this thread's two tokens in a fragment's eight columns j. `units`: from the fragment's first
/// column on.
__device__ __forceinline__ float2 units_of(const float* units, int j) {
  return *reinterpret_cast<const float2*>(units + 8 * j);
}

/// Multiplies scores by `scale` (any sign) to base 2 and adds the units' logarithms.
template <int kCount>
__device__ __forceinline__ void add_units(float (&s)[kCount], const float* units, float scale) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 unit = units_of(units, j);
    const float low = unit.x * scale, high = unit.y * scale;
    const float low_log = log2_of(__float_as_uint(unit.x) >> 23),
                high_log = log2_of(__float_as_uint(unit.y) >> 23);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[4 * j + 2 * i] = fmaf(s[4 * j + 2 * i], low, low_log);
      s[4 * j + 2 * i + 1] = fmaf(s[4 * j + 2 * i + 1], high, high_log);
    }
  }
}

/// The base for a row's maximum, rounded up: from 2^27 on the next lower fp32 would let P be too large for
/// fp16 by a factor of 2^16.
__device__ __forceinline__ float settle_base_of_units(float before, float max) {
  return settle_base(before, __fsub_ru(max, kLargestUnitP), kUnitSlack);
}

/// The rows' bases after these scores.
template <int kCount>
__device__ __forceinline__ RowPair row_base_of_units(const float (&s)[kCount], RowPair before) {
  const RowPair max = row_max(s);
  return {settle_base_of_units(before.low, max.low), settle_base_of_units(before.high, max.high)};
}

/// s = exp2(s - base); returns this thread's share of the rows' sums, without units.
template <int kCount>
__device__ __forceinline__ RowPair exponentials_of_units(float (&s)[kCount], const float* units,
                                                         RowPair row_base) {
  const RowPair base{finite_or_zero(row_base.low), finite_or_zero(row_base.high)};
  RowPair sum{0, 0};
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 unit = units_of(units, j);
    const float share[2] = {inverse_of_power(unit.x), inverse_of_power(unit.y)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[4 * j + i] = exp2_fast(s[4 * j + i] - base.low);
      s[4 * j + 2 + i] = exp2_fast(s[4 * j + 2 + i] - base.high);
      sum.low = fmaf(s[4 * j + i], share[i], sum.low);
      sum.high = fmaf(s[4 * j + 2 + i], share[i], sum.high);
    }
  }
  return sum;
}

}  // namespace flashlatent::sm90
