// The values of a step, element by element: clears what must not be multiplied.
#pragma once

#include "cuda/sm90/kernels/gqa_16/config.h"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::gqa_16 {

template <class Config>
struct Values {
  /// The address of an element of V in its stage.
  __device__ __forceinline__ static std::uint8_t* at(std::uint8_t* planes, int token, int element) {
    std::uint8_t* values = planes + token / 16 * Config::kTileBytes + Config::kPlaneBytes;
    const int byte = element * Config::kElementBytes;
    if constexpr (Config::kPacked) {
      return values + element * Config::kValueRow + token % 16 * Config::kElementBytes;
    } else {
      return values + Config::row_unit(token % 16, byte / 16) + byte % 16;
    }
  }
  __device__ __forceinline__ static void clear(std::uint8_t* value) {
    if constexpr (Config::kFp8) {
      *value = 0;
    } else {
      *reinterpret_cast<std::uint16_t*>(value) = 0;
    }
  }
  /// The value if it is not finite, else 0.
  __device__ __forceinline__ static float not_finite(const std::uint8_t* value) {
    if constexpr (Config::kFp8) {
      return (*value & 0x7f) == 0x7f ? NAN : 0.0F;  // e4m3 has no infinity
    } else {
      const std::uint16_t bits = *reinterpret_cast<const std::uint16_t*>(value);
      return sm90::low_is_poison<typename Config::Product>(bits)
                 ? sm90::unpack<typename Config::Product>(bits).x
                 : 0.0F;
    }
  }

  /// Writes zeros to the stage for dead tokens' values: 0 * NaN is NaN.
  __device__ __forceinline__ static void clear_dead(std::uint8_t* planes, std::uint32_t live) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (std::uint32_t dead = ~live & Config::kAllLive; dead != 0; dead &= dead - 1) {
      const int token = __ffs(static_cast<int>(dead)) - 1;
      if constexpr (Config::kPacked) {  // a token's elements are apart
        for (int element = lane; element < Config::kDim; element += 32) clear(at(planes, token, element));
      } else {
        constexpr int kWord = 4 / Config::kElementBytes;  // elements
        for (int element = lane * kWord; element < Config::kDim; element += 32 * kWord) {
          *reinterpret_cast<std::uint32_t*>(at(planes, token, element)) = 0;
        }
      }
    }
    ptx::fence_for_async_proxy();  // orders these writes before the next copy into this stage
    __syncwarp();
  }
};

}  // namespace flashlatent::gqa_16
