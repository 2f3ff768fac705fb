// The scales of fp8_584 tokens, ue8m0, a byte for each group of 64 columns, as factors of K and V in units of
// their tokens (math/fp8_units.cuh): a ratio is a power of two up to 2^6, and not subnormal in fp16, so all
// values of a token are exact while its scales lie within 2^kSpread.
//
// If they do not, or are larger than any model's, a token is *odd*: its largest scale may say nothing about
// the size of its values, if it is a group of zeros, and a unit from this scale would leave no digits to
// other groups and tokens. The unit of an odd token follows from its codes, too, in some 150 instructions of
// the warp that scores it. Small scales are never odd: the unit has a least value.
#pragma once

#include <cstdint>

#include "cuda/sm90/kernels/fp8/products.cuh"
#include "cuda/sm90/kernels/fp8/scales_584.cuh"

namespace flashlatent::fp8 {

/// The scales of one token.
struct UnitScales {
  static constexpr int kLargestRatio = 6;  // 448 x 2^6 < 65504
  static constexpr int kHalfBias = 15;
  static constexpr std::uint32_t kSpread = kLargestRatio + kHalfBias - 1;
  // The least scale from which a unit follows: 2^-60, so that RoPE's bf16 can be in units of the token, too.
  // Values that are below a unit by more than fp16 can hold count as 0: values below 2^-80.
  static constexpr std::uint32_t kLeast = 67;
  static constexpr std::uint32_t kMost = 187;  // for a token that is not odd: 2^60

  Scales584 bytes;
  std::uint32_t largest;  // scale; for odd tokens a bound of their values over 448, as a scale
  std::uint32_t nan = 0;  // two NaN in bf16, if bound_values() has found the token to be

  /// `at`: the address of its bytes in shared memory.
  __device__ __forceinline__ static UnitScales at(std::uint32_t at) {
    const Scales584 bytes = Scales584::at(at);
    return {bytes, bytes.largest()};
  }
  __device__ __forceinline__ bool is_odd() const {
    return largest > ::max(bytes.least() + kSpread, kLeast) || largest > kMost;
  }
  /// The exponent, as in an fp32, of its unit.
  __device__ __forceinline__ std::uint32_t unit() const { return ::max(largest, kLeast) - kLargestRatio; }
  /// The factor of RoPE: two bf16. NaN if a scale is: then so are the token's score and all that follows.
  __device__ __forceinline__ std::uint32_t inverse_pair() const { return (254 - unit()) * 0x00800080U | nan; }
};

/// The scales of a group, of two tokens, in 16 bits each.
__device__ __forceinline__ std::uint32_t scales_of_both(const UnitScales& first, const UnitScales& second,
                                                        int group) {
  const auto word_of = [group](const UnitScales& scales) {
    return group < 4 ? scales.bytes.words[0] : scales.bytes.words[1];
  };
  return __byte_perm(word_of(first), word_of(second), 0x0400 + 0x0101 * (group % 4)) & 0xFF00FF;
}

/// For tokens some of which are odd: `largest` becomes a bound of their values, and `nan` is found. By all
/// lanes of a warp; `keys_of(group)`: this lane's 16 codes of each of its two tokens; `of_quad(bound)`: the
/// largest bounds, two of 16 bits, of its quad. kUnrolled: how many groups side by side. A group's codes are
/// below 2^9, or below a bound from their exponents: the union of the exponents' bits, at most 2^7 too large.
/// If codes are below 1/2 the bound is larger: a ratio may be at most 2^15.
template <int kUnrolled, class KeysOf, class OfQuad>
__device__ __forceinline__ void bound_values(UnitScales& first, UnitScales& second, KeysOf keys_of,
                                             OfQuad of_quad) {
  constexpr std::uint32_t kAll = 15, kFew = 6;  // exponents of codes
  std::uint32_t bound = 0;                      // of both, + kAll
#pragma unroll kUnrolled
  for (int i = 0; i < fp8_584::kGroups; ++i) {
    const KeyBytes keys = keys_of(i);
    const auto bits_of = [](const uint4& x) { return (x.x | x.y | x.z | x.w) & 0x7F7F7F7F; };
    const std::uint32_t a = bits_of(keys.low), b = bits_of(keys.high);
    std::uint32_t bits = __byte_perm(a, b, 0x5410) | __byte_perm(a, b, 0x7632);
    bits = (bits | bits >> 8) & 0x7F007F;
    const std::uint32_t exponents = __vmaxu2(bits >> 3 & 0x0F000F, kFew * 0x10001);
    // A group of zeros has none.
    bound = __vmaxu2(bound, __vminu2(scales_of_both(first, second, i) + exponents, bits << 9));
  }
  bound = of_quad(bound);
  first.nan = first.bytes.largest() == kNanScale ? 0x7FFF7FFF : 0;
  second.nan = second.bytes.largest() == kNanScale ? 0x7FFF7FFF : 0;
  first.largest = ::max(bound & 0xFFFF, kAll) - kAll;
  second.largest = ::max(bound >> 16, kAll) - kAll;
}

/// Ratios of all groups of two tokens, as two fp16 each.
using Ratios584 = std::uint32_t[fp8_584::kGroups];

/// The scale whose ratio has the exponent 0 as fp16, for two tokens.
__device__ __forceinline__ std::uint32_t zero_ratios(const UnitScales& first, const UnitScales& second) {
  return ((second.unit() - UnitScales::kHalfBias) << 16) + (first.unit() - UnitScales::kHalfBias);
}

/// If no token is odd. Ratios of scales below kLeast / 2^kSpread are 0.
__device__ __forceinline__ void find_ratios(Ratios584& ratios, const UnitScales& first,
                                            const UnitScales& second) {
  const std::uint32_t zero = zero_ratios(first, second);
#pragma unroll
  for (int i = 0; i < fp8_584::kGroups; ++i) {
    ratios[i] = (__vmaxu2(scales_of_both(first, second, i), zero) - zero) << 10;
  }
}

/// For any tokens: up to 2^15 (groups of zeros may have more), and down to fp16's subnormals.
__device__ __forceinline__ void find_odd_ratios(Ratios584& ratios, const UnitScales& first,
                                                const UnitScales& second) {
  const std::uint32_t zero = zero_ratios(first, second);
#pragma unroll
  for (int i = 0; i < fp8_584::kGroups; ++i) {
    const std::uint32_t scales = __vminu2(scales_of_both(first, second, i), zero + 30 * 0x10001);
    const std::uint32_t normal = __vmaxu2(scales, zero + 0x10001);
    const std::uint32_t missing = __vminu2(normal - scales, 14 * 0x10001);
    ratios[i] = sm90::times((normal - zero) << 10, (UnitScales::kHalfBias * 0x10001 - missing) << 10);
  }
}

}  // namespace flashlatent::fp8
