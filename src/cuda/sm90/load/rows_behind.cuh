// What each row of a tile sees, in shared memory.
#pragma once

#include "cuda/sm90/walk/row_tile.cuh"
#include "cuda/sm90/walk/work_queue.cuh"

namespace flashlatent::sm90 {

/// For each row of a tile: the request's tokens that it does not see.
template <int kRows>
struct RowsBehind {
  int of_row[kRows];

  /// Called by the thread of row n.
  __device__ __forceinline__ void find(const DecodeArguments& args, const RowTile& tile, int n) {
    of_row[n] = tile.behind(args, n);
  }
  /// What row n sees.
  __device__ __forceinline__ TokenPrefix seen(const Work& work, int n) const {
    return {work.segment.length - of_row[n]};
  }
  __device__ __forceinline__ TokenPrefix seen_by_all(const Work& work) const { return seen(work, 0); }
};

}  // namespace flashlatent::sm90
