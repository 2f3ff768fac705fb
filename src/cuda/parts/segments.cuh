// A CTA's share of the plan.
#pragma once

#include "cuda/parts/arguments.cuh"

namespace flashlatent::parts {

/// The segments of this CTA's part, one after another.
class Segments {
 public:
  __device__ __forceinline__ explicit Segments(const DecodeArguments& args)
      : args_(args),
        walker_(args.geometry, args.cuts[blockIdx.x / args.geometry.lanes],
                args.cuts[blockIdx.x / args.geometry.lanes + 1], args.cache.lengths) {}

  /// A tile without rows (of a ragged request) has no blocks either: nothing is loaded for it.
  __device__ __forceinline__ bool next(schedule::Segment& segment) {
    if (!walker_.next(segment)) return false;
    if (args_.query.begins != nullptr && tile_of(segment).rows == 0) segment.block_end = segment.block_begin;
    return true;
  }

  __device__ __forceinline__ RowTile tile_of(const schedule::Segment& segment) const {
    return row_tile(args_, segment.request, segment.round, lane());
  }

  /// Which of the part's CTAs this is.
  __device__ __forceinline__ int lane() const { return blockIdx.x % args_.geometry.lanes; }

 private:
  const DecodeArguments& args_;
  schedule::PartWalker walker_;
};

}  // namespace flashlatent::parts
