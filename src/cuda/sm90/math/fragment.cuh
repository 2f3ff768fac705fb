// A tile of 64 x 64 as wgmma's A operand in registers: for each 16 columns, pairs at (row, column),
// (row + 8, column), (row, column + 8), (row + 8, column + 8).
#pragma once

#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::sm90 {

__device__ __forceinline__ std::uint32_t fragment_address(const Tile& tile, int thread, int k) {
  const int lane = thread % 32;
  const int row = thread / 32 * 16 + lane % 16;
  return (ptx::shared_address(&tile) + unit_offset(row, lane / 16)) ^ (k * 32);  // unit 2 k + lane / 16
}

/// Loads columns [16 kBegin, 16 kEnd) of the tile.
template <int kBegin = 0, int kEnd = 4>
__device__ __forceinline__ void load_fragment(std::uint32_t (&a)[4][4], const Tile& tile, int thread) {
#pragma unroll
  for (int k = kBegin; k < kEnd; ++k) ptx::load_matrices(a[k], fragment_address(tile, thread, k));
}

template <int kBegin = 0, int kEnd = 4>
__device__ __forceinline__ void store_fragment(Tile& tile, const std::uint32_t (&a)[4][4], int thread) {
#pragma unroll
  for (int k = kBegin; k < kEnd; ++k) ptx::store_matrices(fragment_address(tile, thread, k), a[k]);
}

}  // namespace flashlatent::sm90
