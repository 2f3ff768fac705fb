// What those who score and those who multiply ask of a tile's rows and a block's tokens.
#pragma once

#include "cuda/etap/softmax.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/mask.cuh"
#include "cuda/quartet/smem_layout.cuh"

namespace flashlatent::quartet {

inline constexpr float kNoBase = -3e38F;  // any finite score exceeds it

/// Tokens of a block that some rows of the tile attend to and others do not. `limit`: of the first row, in
/// tokens of the block.
__device__ __forceinline__ std::uint64_t partial_tokens(std::uint64_t live, int limit) {
  return live & ~parts::low_tokens(limit);
}

/// Of a segment's partial result, the first row, counted in those of all slots.
__device__ __forceinline__ std::int64_t partial_row(const parts::DecodeArguments& args,
                                                    const parts::Work& work) {
  return (static_cast<std::int64_t>(work.segment.slot) * args.geometry.lanes +
          args.lanes.remainder(blockIdx.x)) *
         parts::kTileRows;
}

/// This thread's columns of a row of values, as it has them in S^T and O^T. direct has its own: with 32
/// rows it makes the column anew for each pair, for registers.
template <int kRows>
__device__ __forceinline__ etap::ColumnValues<kRows> columns_of(const float (&row)[kRows], int column) {
  etap::ColumnValues<kRows> values;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const float2 pair = *reinterpret_cast<const float2*>(&row[8 * j + column]);
    values[2 * j] = pair.x;
    values[2 * j + 1] = pair.y;
  }
  return values;
}

}  // namespace flashlatent::quartet
