// e4m3 times any scale, as in caches of separate keys and values; for host and device.
#pragma once

#include "core/formats/fp8_656.h"

namespace flashlatent::fp8_656 {

/// Code times scale. A NaN code gives decode()'s NaN, whatever the scale.
FLASHLATENT_HOST_DEVICE float decode_scaled(std::uint8_t code, float scale) {
  const float x = decode(code);
  return (code & 0x7FU) == kNan ? x : x * scale;
}

/// e4m3(fp32(x / scale)): the quotient is rounded to fp32 first, as IEEE division does it, then to the
/// nearest e4m3, ties to even. If x is finite but the quotient overflows, the result is 448 and not NaN.
FLASHLATENT_HOST_DEVICE std::uint8_t encode_scaled(float x, float scale) {
  const float quotient = x / scale;
  if (!is_finite(x) || is_finite(quotient)) return encode(quotient);
  return quotient > 0 ? 0x7E : quotient < 0 ? 0xFE : kNan;
}

}  // namespace flashlatent::fp8_656
