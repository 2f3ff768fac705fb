// How many tokens each row of a tile attends to.
#pragma once

#include "cuda/sm90/load/rows_behind.cuh"
#include "cuda/sm90/math/mask.cuh"

namespace flashlatent::fp8 {

using sm90::RowsBehind;

/// Tokens of a block to which only some rows of the tile attend. `limit`: the first row's, in tokens of the
/// block.
__device__ __forceinline__ std::uint64_t partial_tokens(std::uint64_t live, int limit) {
  return live & ~sm90::low_tokens(limit);
}

}  // namespace flashlatent::fp8
