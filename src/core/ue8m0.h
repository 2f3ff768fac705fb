// ue8m0 scales, for host and device: a byte is 2^(byte - 127), and 255 is NaN.
#pragma once

#include "core/e4m3.h"

namespace flashlatent::ue8m0 {

/// The value of a scale byte. Byte 0 is 2^-127, subnormal in fp32.
FLASHLATENT_HOST_DEVICE float scale_value(std::uint8_t byte) {
  if (byte == 0xFF) return e4m3::float_of(0x7FC00000U);
  return e4m3::float_of(byte == 0 ? 0x00400000U : std::uint32_t{byte} << 23);
}

/// The byte of the scale 2^exponent; `exponent`: -127 to 127.
FLASHLATENT_HOST_DEVICE std::uint8_t scale_byte(int exponent) {
  return static_cast<std::uint8_t>(exponent + 127);
}

}  // namespace flashlatent::ue8m0
