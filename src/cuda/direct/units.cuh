// The unit of a token in shared memory (parts/fp8_units.cuh). Of K the scales are left to the sums; of V
// units go into probabilities, ratios into the values.
#pragma once

#include "cuda/parts/fp8_units.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::direct {

using parts::log2_of, parts::power_of_two, parts::ratio_to_unit;

/// Its exponent, as in an fp32; finite whatever the token's scales are.
__device__ __forceinline__ std::uint32_t unit_exponent(std::uint32_t token) {
  const uint4 scales = ptx::load_shared_16_bytes(token + fp8_656::kScaleOffset);
  return parts::unit_exponent(fmaxf(fmaxf(__uint_as_float(scales.x), __uint_as_float(scales.y)),
                                    fmaxf(__uint_as_float(scales.z), __uint_as_float(scales.w))));
}

}  // namespace flashlatent::direct
