// How blocks of fp8_584 tokens lie in shared memory: two tokens' data, then the scales of both, with as many
// bytes as in the cache.
//
//   token 0, 576 bytes | token 1, 576 | scales of 0, 8 | scales of 1, 8 | token 2 ...
//
// So a token begins 4 groups of banks (of 16 bytes) after the token before it, and a pair one group after the
// pair before it. The same 16 bytes of eight tokens are then in eight groups (ldmatrix), and so are 64 bytes
// of two tokens, 16 a lane (K to registers). No swizzle is needed, and bulk copies can load tokens.
#pragma once

#include <cstdint>

#include "core/formats/fp8_584.h"

namespace flashlatent::fp8::pairs {

inline constexpr int kPairBytes = 2 * fp8_584::kTokenBytes;
inline constexpr int kBlockBytes = 64 * fp8_584::kTokenBytes;
/// From a token to the one eight places on; the same for its scales.
inline constexpr int kEightTokens = 4 * kPairBytes;
static_assert(kPairBytes / 16 % 8 == 1 && fp8_584::kDataBytes / 16 % 8 == 4);

/// From a block's begin.
__device__ __forceinline__ std::uint32_t data_offset(int token) {
  return token / 2 * kPairBytes + token % 2 * fp8_584::kDataBytes;
}
__device__ __forceinline__ std::uint32_t scale_offset(int token) {
  return token / 2 * kPairBytes + 2 * fp8_584::kDataBytes + token % 2 * fp8_584::kScaleBytes;
}

}  // namespace flashlatent::fp8::pairs
