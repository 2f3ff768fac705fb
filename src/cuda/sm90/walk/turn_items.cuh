// Items by schedule::Partition::kTurns, for sparse prefill. Each warp walks by itself and keeps nothing of
// the walk in registers. There are no lists and no synchronisation.
#pragma once

#include "cuda/sm90/walk/work_queue.cuh"
#include "plan/turns.h"
#include "plan/whole.h"

namespace flashlatent::sm90 {

/// An item of this CTA's lane.
__device__ __forceinline__ Work item_in_turn(const DecodeArguments& args, const schedule::Cut& at) {
  const schedule::Geometry& g = args.geometry;
  Work work;
  if (at.round >= g.rounds) {
    work.segment.request = -1;
    return work;
  }
  const int length = schedule::tokens_of(g, schedule::length_of(g, args.cache.lengths, at.request));
  work.segment = {at.round, at.request, length, 0, schedule::blocks_of(g, length), -1};
  work.tile = row_tile(args, at.request, at.round, args.lanes.remainder(blockIdx.x));
  return work;
}

__device__ __forceinline__ schedule::Cut first_in_turn(const DecodeArguments& args) {
  return schedule::whole_cut(args.geometry, args.lanes.quotient(blockIdx.x));
}

/// A warp's place in its CTA's items.
class TurnItems {
 public:
  /// `mine`: this warp's, in shared memory.
  __device__ __forceinline__ TurnItems(Work& mine, const DecodeArguments& args) : mine_(mine), args_(args) {
    put(first_in_turn(args));
  }

  /// The item here, or an end.
  __device__ __forceinline__ const Work& get() const { return mine_; }
  __device__ __forceinline__ void next() {
    const schedule::Segment& segment = mine_.segment;
    put(schedule::turn_after(args_.geometry, {segment.round, segment.request, 0, 0}));
  }

 private:
  __device__ __forceinline__ void put(const schedule::Cut& at) {
    __syncwarp();  // all lanes have read the previous item
    if (threadIdx.x % 32 == 0) mine_ = item_in_turn(args_, at);
    __syncwarp();
  }

  Work& mine_;
  const DecodeArguments& args_;
};

}  // namespace flashlatent::sm90
