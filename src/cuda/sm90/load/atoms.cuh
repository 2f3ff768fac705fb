// Blocks of tokens of bytes in shared memory, for wgmma with 64-byte swizzle (host/atoms_map.h).
//
// A block is 8 x kChunks atoms of 8 tokens and 64 columns: the atoms of 8 tokens follow one another, then
// come those of the next 8. Unit u (16 bytes) of row r lies at unit u ^ (r / 2 % 4): the same unit of eight
// tokens is in eight groups of banks.
#pragma once

#include <cstdint>

namespace flashlatent::sm90::atoms {

inline constexpr int kAtomRows = 8, kAtomBytes = kAtomRows * 64;

/// The offset of unit `unit` (0 to 3) of a row in its tile.
__device__ __forceinline__ std::uint32_t unit_in_row(int row, int unit) {
  return (unit ^ (row / 2 % 4)) * 16;
}
__device__ __forceinline__ std::uint32_t tile_offset(int row, int unit) {
  return row * 64 + unit_in_row(row, unit);
}
/// The offset of a unit of a token's chunk in its block of kChunks chunks.
template <int kChunks>
__device__ __forceinline__ std::uint32_t block_offset(int token, int chunk, int unit) {
  return (token / kAtomRows * kChunks + chunk) * kAtomBytes + tile_offset(token % kAtomRows, unit);
}

}  // namespace flashlatent::sm90::atoms
