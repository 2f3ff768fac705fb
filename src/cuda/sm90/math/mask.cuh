// How tokens of a block that a row does not see are silenced.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "core/visible.h"
#include "cuda/sm90/math/tile.cuh"

namespace flashlatent::sm90 {

using flashlatent::kAllLive;
using flashlatent::low_tokens;

/// Those of a block's `live` tokens that some rows of a tile see and others do not. `seen_by_all`: what its
/// first row sees, from the block's first token on.
__device__ __forceinline__ std::uint64_t partial_tokens(std::uint64_t live, TokenPrefix seen_by_all) {
  return live & ~seen_by_all.bits();
}

/// Sets scores to -inf: those of tokens outside `live` (tails, invalid pages), and those that a row does not
/// see. `seen_low`, `seen_high`: what rows `row` and row + 8 see; `start`: the first token of `s` among
/// theirs.
template <int kCount, class Seen>
__device__ __forceinline__ void mask_scores(float (&s)[kCount], std::uint64_t live, Seen seen_low,
                                            Seen seen_high, Fragment fragment, int start = 0) {
  const std::uint64_t low = seen_low.bits(start, live) >> fragment.column;
  const std::uint64_t high = seen_high.bits(start, live) >> fragment.column;
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

/// A weight of 0 does not silence NaN: 0 * NaN is NaN. So V's rows of tokens that are not `live` become 0,
/// and in its rows of `partial` tokens the elements that are not finite, after record_poison() has recorded
/// them for the rows that see the token. `row_of(i, token)`: the token's row of the i-th of kTiles tiles.
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

/// The rows that see what is not finite in a column of V: a RowSet in a byte.
struct PoisonedRows {
  static constexpr std::uint8_t kNone = 255;
  std::uint8_t first;

  __device__ __forceinline__ bool contains(int row) const { return row >= first; }
  __device__ __forceinline__ void add(RowSet rows) {
    if (rows.first < first) first = static_cast<std::uint8_t>(rows.first);
  }
  __device__ __forceinline__ void clear() { first = kNone; }
};

/// Records V's elements that are not finite in tokens of `partial`, for the rows that see them: their outputs
/// become NaN at the segment's end. (The same element is in K, so the row's score is NaN or infinite and its
/// weight NaN or 0.) `poisoned` has an entry for each of kColumns columns. `rows_that_see(t)`: a RowSet. Each
/// thread has columns of its own. Returns whether there was any.
template <class Element, int kColumns, int kThreads, class Tiles, class RowsThatSee>
__device__ __forceinline__ bool record_poison(PoisonedRows* poisoned, const Tiles* tiles,
                                              std::uint64_t partial, int thread, RowsThatSee rows_that_see) {
  bool found = false;
#pragma unroll 1
  for (; partial != 0; partial &= partial - 1) {
    const int token = __ffsll(static_cast<long long>(partial)) - 1;
    const RowSet rows = rows_that_see(token);
#pragma unroll 1
    for (int column = 2 * thread; column < kColumns; column += 2 * kThreads) {
      const auto pair = *reinterpret_cast<const std::uint32_t*>(
          tiles[column / 64].bytes + unit_offset(token, column % 64 / 8) + column % 8 * 2);
      const bool low = low_is_poison<Element>(pair), high = high_is_poison<Element>(pair);
      if (low) poisoned[column].add(rows);
      if (high) poisoned[column + 1].add(rows);
      found = found || low || high;
    }
  }
  return found;
}

}  // namespace flashlatent::sm90
