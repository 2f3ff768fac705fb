// The scales of an fp8_656 token, split in two. Its e4m3 values are exact in fp16.
//
// A token has a unit, a power of two, and each group a ratio to it. The unit is applied to scores and
// probabilities in fp32, the ratio to values in fp16. A ratio is at most 128: then no value is above 448 x
// 128 < 65504, and the rest of fp16's range serves groups down to 2^-21 of the token's largest scale.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "core/formats/fp8_656.h"

namespace flashlatent::sm90 {

/// The exponent, as in an fp32, of the unit of a token with this largest scale; finite for any scale.
__device__ __forceinline__ std::uint32_t unit_exponent(float largest_scale) {
  return (__float_as_uint(fminf(fmaxf(largest_scale, 0x1p-100F), 0x1p100F)) >> 23) - 6;
}
__device__ __forceinline__ float power_of_two(std::uint32_t exponent) {
  return __uint_as_float(exponent << 23);
}
/// 2^-x for 2^x, by its bits.
__device__ __forceinline__ float inverse_of_power(float power) {
  return __uint_as_float((254U << 23) - __float_as_uint(power));
}
__device__ __forceinline__ float log2_of(std::uint32_t exponent) {
  return static_cast<float>(static_cast<int>(exponent) - 127);
}
/// The ratio of a group's scale; not finite if the scale is not.
__device__ __forceinline__ __half ratio_to_unit(float scale, std::uint32_t exponent) {
  return __float2half_rn(scale * power_of_two(254 - exponent));
}

/// Two fp16 times two fp16.
__device__ __forceinline__ std::uint32_t times(std::uint32_t pair, std::uint32_t factor) {
  std::uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(factor));
  return product;
}
/// The larger of two fp16 each.
__device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  std::uint32_t max;
  asm("max.f16x2 %0, %1, %2;" : "=r"(max) : "r"(a), "r"(b));
  return max;
}
/// Two bf16 times two bf16.
__device__ __forceinline__ std::uint32_t times_bf16(std::uint32_t pair, std::uint32_t factor) {
  std::uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(factor));
  return product;
}

}  // namespace flashlatent::sm90
