// Online softmax (Milakov & Gimelshein 2018; FlashAttention) over blocks, in base 2, for the two rows that a
// thread shares with the three others of its quad.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace flashlatent::parts {

/// Two values, for rows row and row + 8 of the fragment.
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

/// exp2(x - max) with an empty row's max of -inf giving 0, not NaN.
__device__ __forceinline__ float finite_or_zero(float max) {
  return max == -INFINITY ? 0.0F : max;
}

/// Is a maximum larger than a base by more than `slack`? Rounded down, or probabilities of huge scores could
/// be larger than the slack allows.
__device__ __forceinline__ bool exceeds(float max, float base, float slack) {
  return max > __fadd_rd(base, slack);
}

/// What is subtracted from scores before exp2: the maximum so far, unless a new one is larger by no more than
/// `slack`, so that outputs need not shrink for it (the idea of FlashAttention-4's lazy rescaling).
__device__ __forceinline__ float settle_base(float before, float max, float slack) {
  return exceeds(max, before, slack) ? max : before;
}

/// The slack for a row whose probabilities so far, relative to the base, have this sum, or those of about
/// half of its tokens: the square of a new maximum is then at most 1/32 of it. A token that weighs much must
/// have the probability 1, which rounding leaves alone: the tolerance is that of code without tricks. What
/// weighs is told by the sum of squares, since values of many tokens cancel: a token of 1/38 of the sum
/// itself had two thirds of an output's norm. Probabilities are at most 2^8, which neither bf16 nor fp16
/// minds.
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
  for (int lane = 1; lane <= 2; lane *= 2) {  // both rows' shuffles are under way together
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

/// By what a row's sums and outputs shrink when the base grows. Nothing has been summed as long as it is
/// -inf: outputs, which are 0 then, are left alone.
__device__ __forceinline__ float shrink(float before, float after) {
  return before == -INFINITY ? 1.0F : exp2_fast(before - after);
}
__device__ __forceinline__ RowPair shrink(RowPair before, RowPair after) {
  return {shrink(before.low, after.low), shrink(before.high, after.high)};
}

/// s = exp2(s * scale - base); returns this thread's share of the rows' sums.
template <int kCount>
__device__ __forceinline__ RowPair exponentials(float (&s)[kCount], float scale, RowPair row_base) {
  const RowPair base{finite_or_zero(row_base.low), finite_or_zero(row_base.high)};
  RowPair sum{0, 0};
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[4 * j + i] = exp2_fast(fmaf(s[4 * j + i], scale, -base.low));
      s[4 * j + 2 + i] = exp2_fast(fmaf(s[4 * j + 2 + i], scale, -base.high));
      sum.low += s[4 * j + i];
      sum.high += s[4 * j + 2 + i];
    }
  }
  return sum;
}

template <int kCount>
__device__ __forceinline__ void multiply(float (&s)[kCount], float factor) {
#pragma unroll
  for (float& x : s) x *= factor;
}

/// Is any base of the warp so large that its rounding might count, 2^-15 here?
__device__ __forceinline__ bool is_huge(RowPair base) {
  return __any_sync(0xffffffff, fmaxf(fabsf(base.low), fabsf(base.high)) >= 0x1p10F);
}

/// A scale of 0 or less would turn the order of scores and the -inf of masked ones around: such scores are
/// scaled at once, and by 1 from then on. Returns the scale that is left.
template <int kCount>
__device__ __forceinline__ float positive_scale(float (&s)[kCount], float scale) {
  if (scale > 0) return scale;
  multiply(s, scale);
  return 1.0F;
}

/// exponentials() does not round a score times `scale` before it subtracts a base, which is rounded: the
/// largest probability is not 1 but off by that, from 2^12 on by what fp16 shows, from 2^15 on bf16, and from
/// 2^31 on exp2 has no room for it. Where any base of the warp is large, scores are scaled at once, too.
/// Returns the scale that is left.
template <int kCount>
__device__ __forceinline__ float scale_below(RowPair base, float (&s)[kCount], float scale) {
  if (!is_huge(base)) return scale;
  multiply(s, scale);
  return 1.0F;
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

/// An accumulator as A operands of 16 columns each: the two layouts agree. Of the operands [kBegin, kEnd).
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
/// All of them.
template <class Element, int kCount>
__device__ __forceinline__ void pack_probabilities(std::uint32_t (&p)[kCount / 8][4],
                                                   const float (&s)[kCount]) {
  pack_probabilities<Element, 0, kCount / 8>(p, s);
}

/// Does any row of the warp shrink? The base settles after a few blocks.
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

}  // namespace flashlatent::parts
