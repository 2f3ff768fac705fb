// The scales of an fp8_584 token: seven powers of two, a byte of exponent each, and a byte of padding. Like
// the scales of fp8_656 they are split into a unit for the token and a ratio to it for each group
// (math/fp8_units.cuh), here exactly.
#pragma once

#include <cuda_fp16.h>

#include "core/formats/fp8_584.h"
#include "cuda/sm90/math/fp8_units.cuh"

namespace flashlatent::fp8 {

struct Scales584 {
  std::uint32_t words[2];

  /// `from`: its address in shared memory.
  __device__ __forceinline__ static Scales584 at(std::uint32_t from) {
    Scales584 scales;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(scales.words[0]), "=r"(scales.words[1])
                 : "r"(from)
                 : "memory");
    return scales;
  }

  /// A group's scale in fp32; of 255, which means NaN, infinity (units_584.cuh). 0 counts as 0.
  __device__ __forceinline__ float of_group(int group) const {
    const std::uint32_t word = words[group / 4];
    const int byte = group % 4;
    const std::uint32_t exponent = byte == 3 ? word >> 1 : word << (23 - 8 * byte);
    return __uint_as_float(exponent & 0x7F800000);
  }
  /// The bytes of two groups, of which the first is even.
  __device__ __forceinline__ std::uint32_t pair_from(int group) const {
    return (group < 4 ? words[0] : words[1]) >> group % 4 * 8;
  }

  /// The least and the largest byte of the seven.
  __device__ __forceinline__ std::uint32_t least() const {
    constexpr std::uint32_t kEven = 0x00FF00FF;
    const std::uint32_t low = __vminu2(words[0] & kEven, words[0] >> 8 & kEven);
    const std::uint32_t high = __vminu2(words[1] & kEven, (words[1] >> 8 & 0xFF) | 0xFF0000);
    const std::uint32_t both = __vminu2(low, high);
    return min(both & 0xFFFF, both >> 16);
  }
  __device__ __forceinline__ std::uint32_t largest() const {
    constexpr std::uint32_t kEven = 0x00FF00FF;
    const std::uint32_t low = __vmaxu2(words[0] & kEven, words[0] >> 8 & kEven);
    const std::uint32_t high = __vmaxu2(words[1] & kEven, words[1] >> 8 & 0xFF);
    const std::uint32_t both = __vmaxu2(low, high);
    return max(both & 0xFFFF, both >> 16);
  }
};

inline constexpr std::uint32_t kNanScale = 255;

/// The place of a token's ratio among a group's: the ratios of a quad lane's 16 tokens, 8 i + 2 lane + {0,
/// 1}, are adjacent.
__device__ __forceinline__ int ratio_place_584(int token) {
  return token % 8 / 2 * 16 + token / 8 * 2 + token % 2;
}

/// The ratio of a group's scale to its token's unit, as fp16: above 2^15 the group is all zeros.
__device__ __forceinline__ std::uint16_t ratio_584(std::uint32_t byte, std::uint32_t exponent) {
  const float ratio = __uint_as_float(byte << 23) * sm90::power_of_two(254 - exponent);
  return __half_as_ushort(__float2half_rn(fminf(ratio, 0x1p15F)));
}

}  // namespace flashlatent::fp8
