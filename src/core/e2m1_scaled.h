// e2m1 of x / scale without a division, for host and device.
#pragma once

#include "core/e2m1.h"

namespace flashlatent::e2m1 {

/// The ties between neighbouring magnitudes times a scale of e4m3, which are exact in fp32. With x in fp32
/// the quotient x / scale, rounded to fp32, is a tie only where x is the tie times the scale: the next fp32
/// number is more than half a unit of the quotient away. Codes are those of encode(x / scale) without
/// dividing.
class ScaledCode {
 public:
  FLASHLATENT_HOST_DEVICE explicit ScaledCode(float scale)
      : ties_{0.25F * scale, 0.75F * scale, 1.25F * scale, 1.75F * scale,
              2.5F * scale,  3.5F * scale,  5.0F * scale} {}

  FLASHLATENT_HOST_DEVICE std::uint32_t operator()(float x) const {
    const std::uint32_t bits = e4m3::bits_of(x);
    const float magnitude = e4m3::float_of(bits & 0x7FFFFFFFU);
    if (!(magnitude == magnitude)) return 0;
    const std::uint32_t code = (magnitude > ties_[0]) + (magnitude >= ties_[1]) + (magnitude > ties_[2]) +
                               (magnitude >= ties_[3]) + (magnitude > ties_[4]) + (magnitude >= ties_[5]) +
                               (magnitude > ties_[6]);
    return (bits >> 28 & 8U) | code;
  }

 private:
  float ties_[7];
};

}  // namespace flashlatent::e2m1
