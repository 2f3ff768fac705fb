// A tile in shared memory: 64 rows of 64 16-bit elements, 128 bytes a row, in the 128-byte swizzle that TMA
// writes and wgmma reads: the 16-byte unit u of row r lies at unit u ^ (r % 8).
#pragma once

#include <cstdint>

namespace flashlatent::sm90 {

inline constexpr int kTileRows = 64;
inline constexpr int kRowBytes = 128;

struct alignas(1024) Tile {
  std::uint8_t bytes[kTileRows * kRowBytes];
};

/// Byte offset of 16-byte unit `unit` (0 to 7) of `row`: in the row, and in the tile.
__device__ __forceinline__ std::uint32_t unit_in_row(int row, int unit) {
  return (unit ^ (row & 7)) << 4;
}
__device__ __forceinline__ std::uint32_t unit_offset(int row, int unit) {
  return row * kRowBytes + unit_in_row(row, unit);
}

/// A block of kChunks chunks of 64 columns that was loaded in whole boxes (block_loader.cuh): the first 64
/// columns of 16 tokens, as in a tile, then their next 64 columns and so on; then the next 16 tokens.
inline constexpr int kBoxRows = 16;
template <int kChunks>
__host__ __device__ constexpr int block_row_offset(int chunk, int token) {
  return ((token / kBoxRows * kChunks + chunk) * kBoxRows + token % kBoxRows) * kRowBytes;
}

/// Where a thread's accumulators are in a 64-row result of wgmma: rows `row` and row + 8, columns 8 j +
/// column + {0, 1} for j = 0, 1, ... (registers 4 j + {0, 1} and 4 j + {2, 3}).
struct Fragment {
  int row;
  int column;
};
__device__ __forceinline__ Fragment fragment_of(int thread_in_warpgroup) {
  const int lane = thread_in_warpgroup % 32;
  return {thread_in_warpgroup / 32 * 16 + lane / 4, lane % 4 * 2};
}

}  // namespace flashlatent::sm90
