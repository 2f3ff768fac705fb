// Online softmax (Milakov and Gimelshein 2018; FlashAttention) over blocks, in base 2, for the two rows that
// a thread shares with the other three threads of its quad.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace flashlatent::sm90 {

/// Two values, for rows `row` and row + 8 of the fragment.
struct RowPair {
  float low, high;
};

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

/// 2^x in one instruction, relative error 2^-22 (PTX ISA, ex2); P is rounded to 8 or 11 bits after it.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The maximum to subtract: 0 for an empty row, whose -inf would make exp2(x - max) NaN and not 0.
__device__ __forceinline__ float finite_or_zero(float max) {
  return max == -INFINITY ? 0.0F : max;
}

/// Is a maximum larger than a base by more than `slack`? The difference is rounded down, or probabilities of
/// huge scores could exceed the slack.
__device__ __forceinline__ bool exceeds(float max, float base, float slack) {
  return max > __fadd_rd(base, slack);
}

/// The number to subtract from scores before exp2: the base so far, unless the new maximum exceeds it by more
/// than `slack`. Outputs then need not be rescaled for small increases (FlashAttention-4's lazy rescaling).
__device__ __forceinline__ float settle_base(float before, float max, float slack) {
  return exceeds(max, before, slack) ? max : before;
}

/// The slack of a row whose probabilities so far, relative to the base, have this sum; `is_half`: the sum is
/// of about half of its tokens. The square of a new maximum may then be at most 1/32 of the sum of squares.
/// The reason is the tolerance, which is that of plain code: there a token of large weight has the
/// probability 1, which rounding leaves alone. Squares decide which weight is large, since values of many
/// tokens cancel: a token with 1/38 of the sum of weights had two thirds of an output's norm. Probabilities
/// are at most 2^8, which bf16 and fp16 both hold.
__device__ __forceinline__ float slack_of(float sum, bool is_half = false) {
  return fminf(fmaxf(0.5F * __log2f(sum) - (is_half ? 2.0F : 2.5F), 0.0F), 8.0F);
}

/// The rows' largest scores.
template <int kCount>
__device__ __forceinline__ RowPair row_max(const float (&s)[kCount]) {
  RowPair block{-INFINITY, -INFINITY};
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    block.low = fmaxf(block.low, fmaxf(s[4 * j], s[4 * j + 1]));
    block.high = fmaxf(block.high, fmaxf(s[4 * j + 2], s[4 * j + 3]));
  }
#pragma unroll
  for (int lane = 1; lane <= 2; lane *= 2) {  // the shuffles of both rows are under way together
    const float low = __shfl_xor_sync(0xffffffff, block.low, lane);
    const float high = __shfl_xor_sync(0xffffffff, block.high, lane);
    block = {fmaxf(block.low, low), fmaxf(block.high, high)};
  }
  return block;
}

/// The rows' bases after these scores times `scale`, which is > 0. Masked scores are -inf.
template <int kCount>
__device__ __forceinline__ RowPair row_base(const float (&s)[kCount], float scale, RowPair before,
                                            RowPair slack) {
  const RowPair block = row_max(s);
  return {settle_base(before.low, block.low * scale, slack.low),
          settle_base(before.high, block.high * scale, slack.high)};
}

/// The factor for a row's sums and outputs when the base grows. While the base is -inf nothing has been
/// summed: outputs, which are 0, are left alone.
__device__ __forceinline__ float shrink(float before, float after) {
  return before == -INFINITY ? 1.0F : exp2_fast(before - after);
}
__device__ __forceinline__ RowPair shrink(RowPair before, RowPair after) {
  return {shrink(before.low, after.low), shrink(before.high, after.high)};
}

/// s = exp2(s * scale - base); returns this thread's share of the rows' sums. No base is -inf.
template <int kCount>
__device__ __forceinline__ RowPair exponentials_above(float (&s)[kCount], RowPair scale, RowPair base) {
  RowPair sum{0, 0};
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[4 * j + i] = exp2_fast(fmaf(s[4 * j + i], scale.low, -base.low));
      s[4 * j + 2 + i] = exp2_fast(fmaf(s[4 * j + 2 + i], scale.high, -base.high));
      sum.low += s[4 * j + i];
      sum.high += s[4 * j + 2 + i];
    }
  }
  return sum;
}
template <int kCount>
__device__ __forceinline__ RowPair exponentials_above(float (&s)[kCount], float scale, RowPair base) {
  return exponentials_above(s, RowPair{scale, scale}, base);
}

/// The same for scores that have been scaled, and for any base.
template <int kCount>
__device__ __forceinline__ RowPair exponentials(float (&s)[kCount], RowPair row_base) {
  return exponentials_above(s, 1.0F, {finite_or_zero(row_base.low), finite_or_zero(row_base.high)});
}

template <int kCount>
__device__ __forceinline__ void multiply(float (&s)[kCount], float factor) {
#pragma unroll
  for (float& x : s) x *= factor;
}

/// exponentials_above() does not round a score times `scale` before it subtracts the base, which is rounded.
/// The largest probability is then not 1. From a base of 2^12 on the difference shows in fp16, from 2^15 on
/// in bf16, and from 2^31 on exp2 overflows. So in a row whose base is huge, scores are scaled (and rounded)
/// first. Each row is scaled as its own base demands, since no row's arithmetic may depend on another row;
/// the warp's vote only decides whether rows look at their bases.
__device__ __forceinline__ bool is_huge(float base) {
  return fabsf(base) >= 0x1p10F;
}
__device__ __forceinline__ bool has_huge(RowPair base) {
  return __any_sync(0xffffffff, is_huge(fmaxf(fabsf(base.low), fabsf(base.high))));
}

/// A scale of 0 or less would reverse the order of scores and the sign of masked scores' -inf. So such scores
/// are scaled here, and DecodeArguments::positive_scale is the remaining scale.
template <int kCount>
__device__ __forceinline__ void scale_unless_positive(float (&s)[kCount], float scale) {
  if (!(scale > 0)) multiply(s, scale);
}

/// s = exp2(s * scale - base), of any base; returns this thread's share of the rows' sums.
template <int kCount>
__device__ __forceinline__ RowPair exponentials(float (&s)[kCount], float scale, RowPair row_base) {
  RowPair base{finite_or_zero(row_base.low), finite_or_zero(row_base.high)};
  if (has_huge(row_base)) [[unlikely]] {  // -inf, too: it need not wait for `base`
    // A row that is not huge is multiplied by 1 first, which changes nothing.
    const RowPair first{is_huge(base.low) ? scale : 1.0F, is_huge(base.high) ? scale : 1.0F};
    const RowPair then{is_huge(base.low) ? 1.0F : scale, is_huge(base.high) ? 1.0F : scale};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] = i % 4 < 2 ? fmaf(s[i] * first.low, then.low, -base.low)
                       : fmaf(s[i] * first.high, then.high, -base.high);
    }
    scale = 1;
    base = {0, 0};
  }
  return exponentials_above(s, scale, base);
}

/// The same bits by less code, and two registers more.
template <int kCount>
__device__ __forceinline__ RowPair exponentials_by_row(float (&s)[kCount], float scale, RowPair row_base) {
  const RowPair base{finite_or_zero(row_base.low), finite_or_zero(row_base.high)};
  RowPair then{scale, scale};
  if (has_huge(row_base)) [[unlikely]] {
    const RowPair first{is_huge(base.low) ? scale : 1.0F, is_huge(base.high) ? scale : 1.0F};
    then = {is_huge(base.low) ? 1.0F : scale, is_huge(base.high) ? 1.0F : scale};
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] *= i % 4 < 2 ? first.low : first.high;
  }
  return exponentials_above(s, then, base);
}

template <class Element>
__device__ __forceinline__ std::uint32_t pack(float first, float second);
template <>
__device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ std::uint32_t pack<__half>(float first, float second) {
  const __half2 pair = __floats2half2_rn(first, second);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

template <class Element>
__device__ __forceinline__ float2 unpack(std::uint32_t pair) {
  if constexpr (std::is_same_v<Element, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  }
}

/// Packs accumulators into A operands of 16 columns each, [kBegin, kEnd) of them: both have the same layout.
template <class Element, int kBegin, int kEnd, int kCount>
__device__ __forceinline__ void pack_probabilities(std::uint32_t (&p)[kCount / 8][4],
                                                   const float (&s)[kCount]) {
  static_assert(kEnd <= kCount / 8);
#pragma unroll
  for (int k = kBegin; k < kEnd; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = pack<Element>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
}
/// Packs all of them.
template <class Element, int kCount>
__device__ __forceinline__ void pack_probabilities(std::uint32_t (&p)[kCount / 8][4],
                                                   const float (&s)[kCount]) {
  pack_probabilities<Element, 0, kCount / 8>(p, s);
}

/// Must any row of the warp be rescaled? The base settles after a few blocks.
__device__ __forceinline__ bool shrinks(RowPair factor) {
  return __any_sync(0xffffffff, factor.low != 1.0F || factor.high != 1.0F);
}

template <int kCount>
__device__ __forceinline__ void rescale(float (&o)[kCount], RowPair factor) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    o[4 * j] *= factor.low;
    o[4 * j + 1] *= factor.low;
    o[4 * j + 2] *= factor.high;
    o[4 * j + 3] *= factor.high;
  }
}

}  // namespace flashlatent::sm90
