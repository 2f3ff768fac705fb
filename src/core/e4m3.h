// e4m3 elements and power-of-two scales, for host and device: what the latent FP8 formats have in common.
//
// e4m3 is OCP FP8 (Micikevicius et al., arXiv 2209.05433): a sign, 4 bits of exponent (bias 7), 3 of
// mantissa; no infinity, NaN is 0x7F and 0xFF, the largest number 448.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/host_device.h"

namespace flashlatent::e4m3 {

inline constexpr float kLargest = 448.0F;
inline constexpr std::uint8_t kNan = 0x7F;

FLASHLATENT_HOST_DEVICE std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
FLASHLATENT_HOST_DEVICE float float_of(std::uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

/// Is x neither NaN nor infinite?
FLASHLATENT_HOST_DEVICE bool is_finite(float x) {
  return (bits_of(x) & 0x7F800000U) != 0x7F800000U;
}

/// e4m3 as a float, exactly.
FLASHLATENT_HOST_DEVICE float decode(std::uint8_t code) {
  const std::uint32_t sign = std::uint32_t{code & 0x80U} << 24;
  const std::uint32_t magnitude = code & 0x7FU;
  if (magnitude == 0x7F) return float_of(sign | 0x7FC00000U);
  // The shifted exponent is 120 too small; multiplying by 2^120 corrects it, for subnormals too.
  return float_of(sign | magnitude << 20) * 0x1p120F;
}

/// A float as e4m3: round to nearest, ties to even. Magnitudes beyond 448 become 448; NaN and infinity become
/// NaN.
FLASHLATENT_HOST_DEVICE std::uint8_t encode(float x) {
  if (!is_finite(x)) return kNan;
  const std::uint32_t sign = bits_of(x) >> 24 & 0x80U;
  const float magnitude = float_of(bits_of(x) & 0x7FFFFFFFU);
  if (magnitude >= kLargest) return static_cast<std::uint8_t>(sign | 0x7EU);
  if (magnitude < 0x1p-6F) {  // the last bit of a subnormal is 2^-9; adding 2^14 rounds to it
    return static_cast<std::uint8_t>(sign | (bits_of(magnitude + 0x1p14F) - bits_of(0x1p14F)));
  }
  const std::uint32_t bits = bits_of(magnitude);
  const std::uint32_t rounded = bits + 0x7FFFFU + (bits >> 20 & 1U);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120U << 3)));
}

/// The least exponents of a group's scale: ceil(log2(1e-4 / 448)) where 1e-4 bounds amax, ceil(log2(1e-4))
/// where it bounds the scale (ScaleFloor in flashlatent/problem.h).
inline constexpr int kLeastOfAmax = -22, kLeastOfScale = -13;

/// The exponent of a group's scale: ceil(log2(amax / 448)), at least `least`, where amax is the largest
/// magnitude of the group's finite elements. The scale is a power of two, so that no reader rounds. In code:
/// 448 is 1.75 * 2^8, so a larger fraction than 1.75 carries into the exponent.
FLASHLATENT_HOST_DEVICE int scale_exponent(float amax, int least = kLeastOfScale) {
  constexpr std::uint32_t kCarry = 0x7FFFFF - 0x600000;
  const int exponent = static_cast<int>((bits_of(amax) + kCarry) >> 23) - 127 - 8;
  return exponent > least ? exponent : least;
}

/// 2^exponent; `exponent`: -126 to 127.
FLASHLATENT_HOST_DEVICE float power_of_two(int exponent) {
  return float_of(static_cast<std::uint32_t>(exponent + 127) << 23);
}

}  // namespace flashlatent::e4m3
