// The rotation of a head's last 64 columns, whose neighbours turn together: angles of a query token, and the
// turning of a pair. Each operation is rounded by itself, as in cuda/ops/edges.cu.
#pragma once

#include "core/rotation.h"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::sm90 {

inline constexpr int kRotatedColumns = 64, kRotatedPairs = kRotatedColumns / 2;

/// The angles of a query token's pairs.
using Angles = edges::Angle[kRotatedPairs];

/// The angle of a pair; without positions nothing is turned.
__device__ __forceinline__ edges::Angle angle_of(const edges::Rotary& rotary, const RowTile& tile, int pair) {
  if (rotary.positions == nullptr) return {1, 0};
  return rotary.angle(rotary.position(tile.request, tile.first_token), pair);
}

__device__ __forceinline__ float2 turned(float x, float y, edges::Angle angle) {
  return {edges::sum(edges::product(x, angle.cos), -edges::product(y, angle.sin)),
          edges::sum(edges::product(y, angle.cos), edges::product(x, angle.sin))};
}

/// Reads the edges' arguments, before the launch before is done: a constant's first read takes long.
__device__ __forceinline__ void fetch_constants(const EdgeArguments& edges) {
  constexpr int kLine = 64 / sizeof(std::uint32_t);
  const auto* words = reinterpret_cast<const std::uint32_t*>(&edges);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(edges) / sizeof(std::uint32_t)); i += kLine) {
    asm volatile("" ::"r"(words[i]));
  }
}

}  // namespace flashlatent::sm90
