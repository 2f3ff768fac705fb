// Scales of a token. Its e4m3 values are exact in fp16.
//
// Of K the scales are left to the sums. Of V they are taken apart into the token's unit, a power of two that
// goes into probabilities in fp32, and a ratio to it for each group, which goes into V in fp16: up to 128, so
// that what is left of e4m3's range is there for groups down to 2^-21 of the token's largest, and no value
// above 448 x 128 < 65504.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "core/fp8_656.h"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::direct {

/// The exponent, as in an fp32, of the unit of a token in shared memory; finite whatever its scales are.
__device__ __forceinline__ std::uint32_t unit_exponent(std::uint32_t token) {
  const uint4 scales = ptx::load_shared_16_bytes(token + fp8_656::kScaleOffset);
  const float largest = fmaxf(fmaxf(__uint_as_float(scales.x), __uint_as_float(scales.y)),
                              fmaxf(__uint_as_float(scales.z), __uint_as_float(scales.w)));
  return (__float_as_uint(fminf(fmaxf(largest, 0x1p-100F), 0x1p100F)) >> 23) - 6;
}
__device__ __forceinline__ float power_of_two(std::uint32_t exponent) {
  return __uint_as_float(exponent << 23);
}
__device__ __forceinline__ float log2_of(std::uint32_t exponent) {
  return static_cast<float>(static_cast<int>(exponent) - 127);
}
/// Of a group's scale; not finite where that is not.
__device__ __forceinline__ __half ratio_to_unit(float scale, std::uint32_t exponent) {
  return __float2half_rn(scale * power_of_two(254 - exponent));
}

/// Two fp16 times two.
__device__ __forceinline__ std::uint32_t times(std::uint32_t pair, std::uint32_t factor) {
  std::uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(factor));
  return product;
}

}  // namespace flashlatent::direct
