// How many tokens each row of a tile attends to.
#pragma once

#include "cuda/parts/mask.cuh"
#include "cuda/parts/rows_behind.cuh"

namespace flashlatent::fp8 {

using parts::RowsBehind;

/// Tokens of a block that some rows of the tile attend to and others do not. `limit`: of the first row, in
/// tokens of the block.
__device__ __forceinline__ std::uint64_t partial_tokens(std::uint64_t live, int limit) {
  return live & ~parts::low_tokens(limit);
}

}  // namespace flashlatent::fp8
