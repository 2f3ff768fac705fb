// The scales of fp8_584 tokens, ue8m0, a byte for each group of 64 columns, as what K and V are multiplied by
// in units of their tokens (parts/fp8_units.cuh): a ratio is a power of two up to 2^6, and no subnormal in
// fp16, so that all values of a token are exact while its scales lie within 2^kSpread. Where they do not, or
// are of a size that no model's have, a token is odd: its scales may say nothing of its values' size, as that
// of a group of zeros. Such a token is first written anew, in scales that do.
#pragma once

#include <cstdint>

#include "cuda/fp8/scales_584.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::fp8 {

/// Of one token.
struct UnitScales {
  static constexpr int kLargestRatio = 6;  // 448 x 2^6 < 65504
  static constexpr int kHalfBias = 15;
  static constexpr std::uint32_t kSpread = kLargestRatio + kHalfBias - 1;
  // The largest one of a token that is not odd: 2^-40 to 2^60, so that RoPE's bf16 may be in units of the
  // token, too.
  static constexpr std::uint32_t kLeast = 87, kMost = 187;

  Scales584 bytes;
  std::uint32_t largest;

  /// `at`: of its bytes in shared memory.
  __device__ __forceinline__ static UnitScales at(std::uint32_t at) {
    const Scales584 bytes = Scales584::at(at);
    return {bytes, bytes.largest()};
  }
  __device__ __forceinline__ bool is_odd() const {
    return largest > bytes.least() + kSpread || largest - kLeast > kMost - kLeast;
  }
  /// The exponent, as in an fp32, of its unit.
  __device__ __forceinline__ std::uint32_t unit() const { return ::max(largest, kLeast) - kLargestRatio; }
  /// What RoPE is multiplied by: two bf16.
  __device__ __forceinline__ std::uint32_t inverse_pair() const { return (254 - unit()) * 0x00800080U; }
};

/// Of two tokens, ratios of all groups, as two fp16 each.
using Ratios584 = std::uint32_t[fp8_584::kGroups];

__device__ __forceinline__ void find_ratios(Ratios584& ratios, const UnitScales& first,
                                            const UnitScales& second) {
  // Both exponents become positive: nothing is carried from one to the other.
  const std::uint32_t offset =
      ((UnitScales::kHalfBias - second.unit()) << 16) + (UnitScales::kHalfBias - first.unit());
#pragma unroll
  for (int i = 0; i < fp8_584::kGroups; ++i) {
    const std::uint32_t pair =
        __byte_perm(first.bytes.words[i / 4], second.bytes.words[i / 4], 0x0400 + 0x0101 * (i % 4));
    ratios[i] = ((pair & 0xFF00FF) + offset) << 10;
  }
}

/// A group of an odd token in shared memory.
class OddGroup {
 public:
  __device__ __forceinline__ OddGroup(std::uint8_t* token, std::uint8_t* scales, int group)
      : words_(reinterpret_cast<std::uint32_t*>(token + group * fp8_584::kGroup)), scale_(scales[group]) {}

  __device__ __forceinline__ std::uint32_t scale() const { return scale_; }

  /// Codes as large as a writer's, or nearly: the largest is multiplied to an exponent of kLargest at least.
  /// All values stay what they are; NaN by its scale becomes NaN by its codes.
  __device__ __forceinline__ void raise() const {
    constexpr int kLargest = 14;  // with 15 a code of 1.875 would be NaN
    if (scale_ == kNanScale) {
      scale_ = UnitScales::kLeast;
      for_each([](std::uint32_t) { return 0x7F7F7F7FU; });
    }
    std::uint32_t largest = 0;
    for_each([&](std::uint32_t word) {
      const std::uint32_t codes = word & 0x7F7F7F7F;
      largest = __vmaxu2(largest, __vmaxu2(codes & 0xFF00FF, codes >> 8 & 0xFF00FF));
      return word;
    });
    largest = ::max(largest & 0xFFFF, largest >> 16);
    if (largest == 0) scale_ = 0;
    // A subnormal's is 1 less its zeros.
    const int exponent =
        largest >= 8 ? static_cast<int>(largest >> 3) : 29 - __clz(static_cast<int>(largest));
    multiply(::max(::min(kLargest - exponent, static_cast<int>(scale_)), 0));
  }
  /// Its scale is at least that: what is below it by 2^-20 of the token's largest value is rounded.
  __device__ __forceinline__ void lift(std::uint32_t least) const {
    if (scale_ < least) multiply(static_cast<int>(scale_) - static_cast<int>(least));
  }

 private:
  template <class Change>
  __device__ __forceinline__ void for_each(Change change) const {
#pragma unroll 1
    for (int i = 0; i < fp8_584::kGroup / 4; ++i) words_[i] = change(words_[i]);
  }
  /// Codes by a power of two, and the scale by its inverse.
  __device__ __forceinline__ void multiply(int powers) const {
    scale_ -= powers;
    powers = ::max(powers, -22);  // all becomes 0
    // In two steps, each of which is an fp16.
    const int once = powers / 2;
    const std::uint32_t first = (once + UnitScales::kHalfBias) * 0x04000400U,
                        second = (powers - once + UnitScales::kHalfBias) * 0x04000400U;
    for_each([&](std::uint32_t word) {
      const ptx::HalfPairs values = ptx::widen_e4m3(word);
      return ptx::narrow_to_e4m3({parts::times(parts::times(values.low, first), second),
                                  parts::times(parts::times(values.high, first), second)});
    });
  }

  std::uint32_t* words_;
  std::uint8_t& scale_;
};

/// Writes a token anew, so that its scales lie within 2^kSpread and say how large its values are.
__device__ __forceinline__ void tame_token(std::uint8_t* token, std::uint8_t* scales) {
  std::uint32_t largest = UnitScales::kLeast;
#pragma unroll 1
  for (int i = 0; i < fp8_584::kGroups; ++i) {
    const OddGroup group(token, scales, i);
    group.raise();
    largest = ::max(largest, group.scale());
  }
#pragma unroll 1
  for (int i = 0; i < fp8_584::kGroups; ++i) {
    OddGroup(token, scales, i).lift(largest - UnitScales::kSpread);
  }
  ptx::fence_for_async_proxy();  // its place is written by copies next
}

}  // namespace flashlatent::fp8
