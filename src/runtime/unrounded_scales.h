// Scales as writers leave them that do not round to powers of two. Plain C++, for host and device.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/formats/format.h"
#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "runtime/random_value.h"

namespace flashlatent::runtime {

/// Where the fp32 scales of a cache's tokens are.
struct TokenScales {
  std::uint8_t* pages;
  LatentFormat format;
  std::int64_t page_size, page_stride, token_stride;  // strides in bytes

  /// Multiplies those of token number `i` by numbers of [1, 2).
  FLASHLATENT_HOST_DEVICE_INLINE void spread(std::int64_t i) const {
    std::uint8_t* scales = pages + i / page_size * page_stride +
                           format.scales_at(page_size, i % page_size, token_stride);
    for (int group = 0; group < format.groups(); ++group) {
      float scale;
      std::memcpy(&scale, scales + 4 * group, 4);
      scale *= 1 + static_cast<float>(random_bits(1, i * 4 + group) >> 40) * 0x1p-24F;
      std::memcpy(scales + 4 * group, &scale, 4);
    }
  }
};

#if FLASHLATENT_WITH_CUDA
/// spread() of `tokens` tokens.
Status spread_scales_cuda(const TokenScales& scales, std::int64_t tokens, const Executor& executor);
#endif

}  // namespace flashlatent::runtime
