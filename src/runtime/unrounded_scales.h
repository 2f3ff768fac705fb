// Scales as writers leave them that do not round to powers of two. Plain C++, for host and device.
#pragma once

#include <cstdint>
#include <cstring>

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "runtime/random_value.h"

namespace flashlatent::runtime {

/// Where the fp32 scales of a cache's tokens are. Strides in bytes.
struct TokenScales {
  std::uint8_t* first;  ///< The first token's.
  std::int64_t page_size, page_stride, token_stride;
  int groups;  ///< Scales of a token.

  /// Multiplies those of token number `i` by numbers of [1, 2).
  FLASHLATENT_HOST_DEVICE_INLINE void spread(std::int64_t i) const {
    std::uint8_t* of_token = first + i / page_size * page_stride + i % page_size * token_stride;
    for (int group = 0; group < groups; ++group) {
      float scale;
      std::memcpy(&scale, of_token + 4 * group, 4);
      scale *= 1 + static_cast<float>(random_bits(1, i * groups + group) >> 40) * 0x1p-24F;
      std::memcpy(of_token + 4 * group, &scale, 4);
    }
  }
};

#if FLASHLATENT_WITH_CUDA
/// spread() of `tokens` tokens.
Status spread_scales_cuda(const TokenScales& scales, std::int64_t tokens, const Executor& executor);
#endif

}  // namespace flashlatent::runtime
