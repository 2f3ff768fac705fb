// Which tokens of a block a row attends to.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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

/// Rows of dead tokens in V's tiles become 0: their weight is 0, but 0 * NaN is not.
template <int kTiles, int kThreads>
__device__ __forceinline__ void clear_dead_tokens(Tile* tiles, std::uint64_t live, int thread) {
  for (int i = thread; i < kTileRows * 8; i += kThreads) {
    const int row = i / 8;
    if (live >> row & 1) continue;
    for (int tile = 0; tile < kTiles; ++tile) {
      *reinterpret_cast<uint4*>(tiles[tile].bytes + unit_offset(row, i % 8)) = make_uint4(0, 0, 0, 0);
    }
  }
}

}  // namespace flashlatent::parts
