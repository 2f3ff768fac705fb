// A CTA's share of the plan.
#pragma once

#include "cuda/parts/arguments.cuh"

namespace flashlatent::parts {

/// Calls `body(segment, tile, length)` for each segment of this CTA's part.
template <class Body>
__device__ __forceinline__ void for_each_segment(const DecodeArguments& args, Body&& body) {
  const int part = blockIdx.x / args.geometry.lanes;
  const int lane = blockIdx.x % args.geometry.lanes;
  schedule::PartWalker walker(args.geometry, args.cuts[part], args.cuts[part + 1]);
  for (schedule::Segment segment; walker.next(args.cache.lengths, segment);) {
    const int length = min(max(args.cache.lengths[segment.request], 0), args.geometry.max_tokens);
    body(segment, row_tile(args, segment.request, segment.round, lane), length);
  }
}

}  // namespace flashlatent::parts
