// Which tokens of a block a row attends to.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/parts/tile.cuh"

namespace flashlatent::parts {

inline constexpr std::uint64_t kAllLive = ~0ULL;

/// Bits [0, count) of a block's 64 tokens.
__device__ __forceinline__ std::uint64_t low_tokens(int count) {
  return count <= 0 ? 0 : count >= 64 ? kAllLive : (1ULL << count) - 1;
}

/// Scores of tokens outside `live` (tails, invalid pages) or at or past the row's limit become -inf.
/// `limit` is in tokens of this block, for rows row and row + 8.
__device__ __forceinline__ void mask_scores(float (&s)[32], std::uint64_t live, int limit_low, int limit_high,
                                            Fragment fragment) {
  const std::uint64_t low = (live & low_tokens(limit_low)) >> fragment.column;
  const std::uint64_t high = (live & low_tokens(limit_high)) >> fragment.column;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!(low >> (8 * j + i) & 1)) s[4 * j + i] = -INFINITY;
      if (!(high >> (8 * j + i) & 1)) s[4 * j + 2 + i] = -INFINITY;
    }
  }
}

/// The 16-bit elements of a word that are Inf or NaN become 0.
template <class Element>
__device__ __forceinline__ std::uint32_t finite_or_zero_pair(std::uint32_t pair) {
  constexpr std::uint32_t kExponent = std::is_same_v<Element, __half> ? 0x7C00 : 0x7F80;
  if ((pair & kExponent) == kExponent) pair &= 0xFFFF0000;
  if ((pair >> 16 & kExponent) == kExponent) pair &= 0x0000FFFF;
  return pair;
}

/// A weight of 0 does not silence NaN: 0 * NaN is NaN. So V's rows of dead tokens become 0, and in rows that
/// only some queries see (`partial`, by the causal mask) what is not finite does: the queries that see such a
/// token have a weight of NaN for it already.
template <class Element, int kTiles, int kThreads>
__device__ __forceinline__ void silence_tokens(Tile* tiles, std::uint64_t live, std::uint64_t partial,
                                               int thread) {
  for (int i = thread; i < kTileRows * 8; i += kThreads) {
    const int row = i / 8;
    const bool dead = !(live >> row & 1);
    if (!dead && !(partial >> row & 1)) continue;
    for (int tile = 0; tile < kTiles; ++tile) {
      auto* unit = reinterpret_cast<uint4*>(tiles[tile].bytes + unit_offset(row, i % 8));
      uint4 value = make_uint4(0, 0, 0, 0);
      if (!dead) {
        value = *unit;
        value.x = finite_or_zero_pair<Element>(value.x);
        value.y = finite_or_zero_pair<Element>(value.y);
        value.z = finite_or_zero_pair<Element>(value.z);
        value.w = finite_or_zero_pair<Element>(value.w);
      }
      *unit = value;
    }
  }
}

}  // namespace flashlatent::parts
