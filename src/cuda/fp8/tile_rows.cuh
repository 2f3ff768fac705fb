// How many tokens each row of a tile attends to.
#pragma once

#include "cuda/parts/mask.cuh"
#include "cuda/parts/work_queue.cuh"

namespace flashlatent::fp8 {

/// Of a tile's rows, how many of the request's tokens each does not attend to.
template <int kRows>
struct RowsBehind {
  int of_row[kRows];

  /// By the thread of row n.
  __device__ __forceinline__ void find(const parts::DecodeArguments& args, const parts::RowTile& tile,
                                       int n) {
    of_row[n] = tile.behind(args, n);
  }
  /// How many tokens row n attends to.
  __device__ __forceinline__ int limit(const parts::Work& work, int n) const {
    return work.segment.length - of_row[n];
  }
};

/// Tokens of a block that some rows of the tile attend to and others do not. `limit`: of the first row, in
/// tokens of the block.
__device__ __forceinline__ std::uint64_t partial_tokens(std::uint64_t live, int limit) {
  return live & ~parts::low_tokens(limit);
}

}  // namespace flashlatent::fp8
