// Which tokens of a block a row attends to, and how other tokens are silenced.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/math/tile.cuh"

namespace flashlatent::sm90 {

inline constexpr std::uint64_t kAllLive = ~0ULL;

/// Bits [0, count) of a block's 64 tokens.
__device__ __forceinline__ std::uint64_t low_tokens(int count) {
  return count <= 0 ? 0 : count >= 64 ? kAllLive : (1ULL << count) - 1;
}

/// Sets scores to -inf: those of tokens outside `live` (tails, invalid pages), and those at or past the row's
/// limit. The limits of rows `row` and row + 8 count in tokens of this block.
template <int kCount>
__device__ __forceinline__ void mask_scores(float (&s)[kCount], std::uint64_t live, int limit_low,
                                            int limit_high, Fragment fragment) {
  const std::uint64_t low = (live & low_tokens(limit_low)) >> fragment.column;
  const std::uint64_t high = (live & low_tokens(limit_high)) >> fragment.column;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!(low >> (8 * j + i) & 1)) s[4 * j + i] = -INFINITY;
      if (!(high >> (8 * j + i) & 1)) s[4 * j + 2 + i] = -INFINITY;
    }
  }
}

/// Inf or NaN: all bits of the exponent are set.
template <class Element>
inline constexpr std::uint32_t kExponent = std::is_same_v<Element, __half> ? 0x7C00 : 0x7F80;
template <class Element>
__device__ __forceinline__ bool low_is_poison(std::uint32_t pair) {
  return (pair & kExponent<Element>) == kExponent<Element>;
}
template <class Element>
__device__ __forceinline__ bool high_is_poison(std::uint32_t pair) {
  return low_is_poison<Element>(pair >> 16);
}

template <class Element>
__device__ __forceinline__ std::uint32_t finite_or_zero_pair(std::uint32_t pair) {
  if (low_is_poison<Element>(pair)) pair &= 0xFFFF0000;
  if (high_is_poison<Element>(pair)) pair &= 0x0000FFFF;
  return pair;
}

/// A weight of 0 does not silence NaN: 0 * NaN is NaN. So V's rows of tokens that are not `live` become 0.
/// `row_of(i, token)`: the token's row of the i-th of kTiles tiles. Unrolled: most requests end inside a
/// block, and with a loop 8 requests of 33 tokens take 1.2 us longer than 8 of 64 tokens (64 heads, H200).
template <int kTiles, int kThreads, class RowOf>
__device__ __forceinline__ void zero_tokens(RowOf row_of, std::uint64_t live, int thread) {
#pragma unroll
  for (int first = 0; first < kTileRows * 8; first += kThreads) {
    const int row = (first + thread) / 8;
    if (live >> row & 1) continue;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      *reinterpret_cast<uint4*>(row_of(tile, row) + unit_in_row(row, thread % 8)) = make_uint4(0, 0, 0, 0);
    }
  }
}

/// Has V an element that is not finite in rows of `partial` tokens, which only some queries see because of
/// the causal mask? Each thread looks at some elements.
template <class Element, int kTiles, int kThreads, class RowOf>
__device__ __forceinline__ bool holds_poison(RowOf row_of, std::uint64_t partial, int thread) {
  constexpr std::uint32_t kMagnitudes = 0x7FFF7FFF;
  std::uint32_t largest = 0;  // of first and of second elements
#pragma unroll 1
  for (int i = thread; i < kTileRows * 8; i += kThreads) {
    const int row = i / 8;
    if (!(partial >> row & 1)) continue;
#pragma unroll 2
    for (int tile = 0; tile < kTiles; ++tile) {
      const auto unit = *reinterpret_cast<const uint4*>(row_of(tile, row) + unit_in_row(row, i % 8));
      largest = __vmaxu2(largest, __vmaxu2(unit.x & kMagnitudes, unit.y & kMagnitudes));
      largest = __vmaxu2(largest, __vmaxu2(unit.z & kMagnitudes, unit.w & kMagnitudes));
    }
  }
  return low_is_poison<Element>(largest) || high_is_poison<Element>(largest);
}

/// zero_tokens() in a loop, for kernels that have no registers or code to spare. In V's rows of `partial`
/// tokens, elements that are not finite become 0, too, after record_poison() has recorded them for the
/// queries that see the token.
template <class Element, int kTiles, int kThreads, class RowOf>
__device__ __forceinline__ void silence_tokens(RowOf row_of, std::uint64_t live, std::uint64_t partial,
                                               int thread) {
  for (int i = thread; i < kTileRows * 8; i += kThreads) {
    const int row = i / 8;
    const bool dead = !(live >> row & 1);
    if (!dead && !(partial >> row & 1)) continue;
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      auto* unit = reinterpret_cast<uint4*>(row_of(tile, row) + unit_in_row(row, i % 8));
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

inline constexpr std::uint8_t kNoPoison = 255;

/// Records V's elements that are not finite in tokens of `partial`, for the rows that see them: their outputs
/// become NaN at the segment's end. (The same element is in K, so the row's score is NaN or infinite and its
/// weight NaN or 0.) Queries see tokens in order, so the first row is enough for each of kColumns columns;
/// `poison_from` keeps it. `first_row(t)`: the first row that sees token t. Each thread has columns of its
/// own. Returns whether there was any.
template <class Element, int kColumns, int kThreads, class Tiles, class FirstRow>
__device__ __forceinline__ bool record_poison(std::uint8_t* poison_from, const Tiles* tiles,
                                              std::uint64_t partial, int thread, FirstRow first_row) {
  bool found = false;
#pragma unroll 1
  for (; partial != 0; partial &= partial - 1) {
    const int token = __ffsll(static_cast<long long>(partial)) - 1;
    const int row = max(first_row(token), 0);
#pragma unroll 1
    for (int column = 2 * thread; column < kColumns; column += 2 * kThreads) {
      const auto pair = *reinterpret_cast<const std::uint32_t*>(
          tiles[column / 64].bytes + unit_offset(token, column % 64 / 8) + column % 8 * 2);
      const bool low = low_is_poison<Element>(pair), high = high_is_poison<Element>(pair);
      if (low && row < poison_from[column]) poison_from[column] = row;
      if (high && row < poison_from[column + 1]) poison_from[column + 1] = row;
      found = found || low || high;
    }
  }
  return found;
}

}  // namespace flashlatent::sm90
