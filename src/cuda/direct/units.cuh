// Scales of a token. Its e4m3 values are exact in fp16; its four scales are taken apart into the token's unit,
// a power of two that goes into scores and probabilities in fp32, and a ratio to it for each group, which goes
// into K and V in fp16: up to 128, so that what is left of e4m3's range is exact for groups down to 2^-21 of
// the token's largest, and no larger than 448 x 128 < 65504.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "core/fp8_656.h"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::direct {

struct TokenUnit {
  std::uint32_t exponent;  // of the unit, as in an fp32
  __half ratio[fp8_656::kGroups];

  __device__ __forceinline__ float unit() const { return __uint_as_float(exponent << 23); }
  __device__ __forceinline__ float inverse() const { return __uint_as_float((254 - exponent) << 23); }
  __device__ __forceinline__ float log2() const {
    return static_cast<float>(static_cast<int>(exponent) - 127);
  }
};

/// Of a token in shared memory. Finite whatever the scales are; ratios are as they are.
__device__ __forceinline__ TokenUnit unit_of(std::uint32_t token) {
  const uint4 raw = ptx::load_shared_16_bytes(token + fp8_656::kScaleOffset);
  const float scales[4] = {__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                           __uint_as_float(raw.w)};
  float largest = fmaxf(fmaxf(scales[0], scales[1]), fmaxf(scales[2], scales[3]));
  largest = fminf(fmaxf(largest, 0x1p-100F), 0x1p100F);
  TokenUnit unit;
  unit.exponent = (__float_as_uint(largest) >> 23) - 6;
#pragma unroll
  for (int i = 0; i < 4; ++i) unit.ratio[i] = __float2half_rn(scales[i] * unit.inverse());
  return unit;
}

/// Two fp16 times two.
__device__ __forceinline__ std::uint32_t times(std::uint32_t pair, std::uint32_t factor) {
  std::uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(factor));
  return product;
}
__device__ __forceinline__ std::uint32_t twice(__half x) {
  const __half2 pair = __half2half2(x);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

}  // namespace flashlatent::direct
