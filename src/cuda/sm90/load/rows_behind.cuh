// The number of tokens that each row of a tile attends to, in shared memory.
#pragma once

#include "cuda/sm90/walk/row_tile.cuh"
#include "cuda/sm90/walk/work_queue.cuh"

namespace flashlatent::sm90 {

/// For each row of a tile: the request's tokens that it does not attend to.
template <int kRows>
struct RowsBehind {
  int of_row[kRows];

  /// Called by the thread of row n.
  __device__ __forceinline__ void find(const DecodeArguments& args, const RowTile& tile, int n) {
    of_row[n] = tile.behind(args, n);
  }
  /// The number of tokens that row n attends to.
  __device__ __forceinline__ int limit(const Work& work, int n) const {
    return work.segment.length - of_row[n];
  }
};

}  // namespace flashlatent::sm90
