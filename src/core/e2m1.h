// e2m1 elements (FP4) and their e4m3 scales, for host and device: a sign, 2 bits of exponent, 1 of mantissa;
// the magnitudes are 0, 0.5, 1, 1.5, 2, 3, 4 and 6. There is no NaN and no infinity.
#pragma once

#include "core/e4m3.h"

namespace flashlatent::e2m1 {

inline constexpr float kLargest = 6.0F;
inline constexpr float kLeastScale = 0x1p-9F;  // e4m3's least

/// e2m1 as a float, exactly.
FLASHLATENT_HOST_DEVICE float decode(std::uint8_t code) {
  const std::uint32_t sign = std::uint32_t{code & 8U} << 28;
  const std::uint32_t magnitude = code & 7U;
  // The shifted exponent is 126 too small; multiplying by 2^126 corrects it, for the subnormal 0.5, too.
  return e4m3::float_of(sign | magnitude << 22) * 0x1p126F;
}

/// A float as e2m1: round to nearest, ties to even mantissa. Magnitudes beyond 6 become 6; NaN becomes 0.
FLASHLATENT_HOST_DEVICE std::uint8_t encode(float x) {
  const std::uint32_t bits = e4m3::bits_of(x);
  const float magnitude = e4m3::float_of(bits & 0x7FFFFFFFU);
  if (!(magnitude == magnitude)) return 0;
  // Ties lie between neighbours: 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5; those below an even code go down.
  const std::uint32_t code = (magnitude > 0.25F) + (magnitude >= 0.75F) + (magnitude > 1.25F) +
                             (magnitude >= 1.75F) + (magnitude > 2.5F) + (magnitude >= 3.5F) +
                             (magnitude > 5.0F);
  return static_cast<std::uint8_t>((bits >> 28 & 8U) | code);
}

/// The scale byte, e4m3, of a group whose largest finite magnitude is amax.
FLASHLATENT_HOST_DEVICE std::uint8_t scale_byte(float amax) {
  const float scale = amax / kLargest;
  return e4m3::encode(scale < kLeastScale ? kLeastScale : scale > e4m3::kLargest ? e4m3::kLargest : scale);
}

}  // namespace flashlatent::e2m1
