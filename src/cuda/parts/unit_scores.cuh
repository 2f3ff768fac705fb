// Softmax over scores that come in units of tokens (fp8_units.cuh), as parts/softmax.cuh has it otherwise.
//
// A probability meets V in the same unit, so that it is the product of both that fp16 must have room for. The
// base is therefore taken of scores and units together, and sums leave the units out.
#pragma once

#include "cuda/parts/fp8_units.cuh"
#include "cuda/parts/softmax.cuh"

namespace flashlatent::parts {

/// P times its unit is brought to at most 2^kLargestUnitP, until a later one is larger by no more than
/// 2^kUnitSlack, for which outputs need not shrink. Below fp16 has 33 binades left, and 11 bits where bf16
/// has 8.
inline constexpr float kLargestUnitP = 9;
inline constexpr float kUnitSlack = 6;

/// Of a fragment's eight columns j, the units of this thread's two tokens. `units` begins at its first
/// column.
__device__ __forceinline__ float2 units_of(const float* units, int j) {
  return *reinterpret_cast<const float2*>(units + 8 * j);
}

/// Scores times `scale` (any sign) to base 2, and the unit's logarithm.
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

/// The base for a row's maximum: rounded up, since below that of scores from 2^27 on the next fp32 is one by
/// 2^16 too large for fp16.
__device__ __forceinline__ float settle_base_of_units(float before, float max) {
  return settle_base(before, __fsub_ru(max, kLargestUnitP), kUnitSlack);
}

/// The rows' bases after these.
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

}  // namespace flashlatent::parts
