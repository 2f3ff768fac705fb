// Conversions of bf16 and fp16 on the host.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "flashlatent/tensor.h"

namespace flashlatent {

inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

/// Round to nearest, ties to even; NaN stays NaN.
inline std::uint16_t float_to_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float fp16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1F;
  const std::uint32_t mantissa = bits & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | mantissa << 13);
  if (exponent == 0) {  // a subnormal is mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

/// Round to nearest, ties to even; overflow gives Inf; NaN stays NaN.
inline std::uint16_t float_to_fp16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7E00;
  if (magnitude >= 65520.0F) return sign | 0x7C00;
  if (magnitude < 0x1p-14F) {  // adding 2^-1 aligns the subnormal's last bit and rounds it
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(magnitude + 0.5F) - 0x3F000000U);
  }
  const std::uint32_t rounded = (bits & 0x7FFFFFFF) + 0xFFF + (bits >> 13 & 1);
  return sign | static_cast<std::uint16_t>((rounded - (112U << 23)) >> 13);
}

inline float to_float(std::uint16_t bits, Dtype dtype) {
  return dtype == Dtype::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}
inline std::uint16_t from_float(float x, Dtype dtype) {
  return dtype == Dtype::kBF16 ? float_to_bf16(x) : float_to_fp16(x);
}

}  // namespace flashlatent
