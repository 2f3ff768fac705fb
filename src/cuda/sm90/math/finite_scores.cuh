// Does a block have values that are not finite? V is a part of K: where V of a token has such a value, the
// scores of all rows with this token are not finite, before they are masked. So a kernel whose scores are
// finite need not look at V, nor write zeros over tokens that no row sees: their weights are 0.
#pragma once

namespace flashlatent::sm90 {

/// Are all scores finite? 0 times Inf or NaN is NaN.
template <int kCount>
__device__ __forceinline__ bool all_finite(const float (&s)[kCount]) {
  static_assert(kCount % 4 == 0);
  float zero[4] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) zero[i % 4] = fmaf(s[i], 0.0F, zero[i % 4]);
  return (zero[0] + zero[1]) + (zero[2] + zero[3]) == 0.0F;
}

}  // namespace flashlatent::sm90
