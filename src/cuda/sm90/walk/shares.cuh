// Parts that are shares of one request (schedule::combines_shares()): a CTA has one segment and walks no
// plan. A walk is in local memory, and each access is a trip to L2: with a walk the computing warps of
// mla_64_pingpong knew their segment 3.3 us after the previous launch. Even shares follow from shapes, so the
// plan is not read. Shares by length are in the plan, which is read together with all lengths.
#pragma once

#include "cuda/sm90/walk/listed_tokens.cuh"
#include "cuda/sm90/walk/work_queue.cuh"
#include "plan/even_shares.h"
#include "plan/whole.h"

namespace flashlatent::sm90 {

/// The part of a stored cut. Its block numbers are still the share's number and count. A part without work is
/// an end.
__device__ __forceinline__ Work part_of(const DecodeArguments& args, const schedule::Cut& stored) {
  const schedule::StoredShare cut(stored);
  Work work;
  work.segment = {0, cut.shares() > 0 ? cut.request() : -1, 0, cut.share(), cut.shares(), cut.partial()};
  if (!work.is_end()) work.tile = row_tile(args, cut.request(), 0, args.lanes.remainder(blockIdx.x));
  return work;
}

/// Replaces the share's number and count by its blocks; a tile without rows (of a short ragged request) gets
/// none.
__device__ __forceinline__ void place_blocks(const schedule::Geometry& g, Work& work, int length) {
  schedule::Segment& segment = work.segment;
  const int share = segment.block_begin, shares = segment.block_end;
  segment.length = schedule::tokens_of(g, length);
  const int blocks = work.tile.rows == 0 ? 0 : schedule::blocks_of(g, segment.length);
  segment.block_begin = schedule::share_begin(blocks, shares, share);
  segment.block_end = schedule::share_begin(blocks, shares, share + 1);
}

/// This CTA's part of even shares. Nothing is read from memory, unless queries are ragged.
__device__ __forceinline__ Work even_part(const DecodeArguments& args) {
  return part_of(args, schedule::stored(schedule::even_cut(args.geometry, args.lanes.quotient(blockIdx.x))));
}

/// The item at `cut`, of this CTA's lane, or an end: a share that is the whole item.
__device__ __forceinline__ Work whole_item(const DecodeArguments& args, const schedule::Cut& cut) {
  Work work;
  work.segment = {cut.round, cut.round < args.geometry.rounds ? cut.request : -1, 0, 0, 1, -1};
  if (!work.is_end()) {
    work.tile = row_tile(args, cut.request, cut.round, args.lanes.remainder(blockIdx.x));
  }
  return work;
}

/// The first item of this CTA, if parts are whole items by kTurns.
__device__ __forceinline__ Work whole_part(const DecodeArguments& args) {
  return whole_item(args, schedule::whole_cut(args.geometry, args.lanes.quotient(blockIdx.x)));
}

/// The part of this CTA as the plan has it, its blocks in place. By a warp, in one trip to memory: a lane
/// reads each request's length. kLists: tokens are of two lists (listed_tokens.cuh).
template <bool kLists>
__device__ __forceinline__ Work planned_part(const DecodeArguments& args) {
  const schedule::Geometry& g = args.geometry;
  const int lane = threadIdx.x % 32;
  const int length = lane < g.requests ? schedule::length_of(g, item_lengths<kLists>(args.cache), lane) : 0;
  Work work = part_of(args, args.cuts[args.lanes.quotient(blockIdx.x)]);
  const int of_request = __shfl_sync(0xffffffff, length, max(work.segment.request, 0));
  if (!work.is_end()) place_blocks(g, work, of_request);
  return work;
}

/// The part of this CTA, even or by length, as the schedule has it: what shapes tell is computed before the
/// previous launch is done. kMayBeWhole: it may also be the first of whole items by kTurns.
template <bool kMayBeRagged, bool kLists = false, bool kMayBeWhole = false>
class Part {
 public:
  __device__ __forceinline__ explicit Part(const DecodeArguments& args) : args_(args) {
    if (by_shapes() && !is_ragged()) work_ = part_by_shapes();
  }
  /// Called by a warp afterwards: the part with its blocks.
  __device__ __forceinline__ const Work& find() {
    if (!by_shapes()) [[unlikely]] {  // out of the way of lone requests: 0.1 us of 16,384 tokens
      work_ = planned_part<kLists>(args_);
    } else {
      if (is_ragged()) work_ = part_by_shapes();
      const schedule::Geometry& g = args_.geometry;
      if (!work_.is_end()) {
        place_blocks(g, work_,
                     schedule::length_of(g, item_lengths<kLists>(args_.cache), work_.segment.request));
      }
    }
    return work_;
  }

 private:
  __device__ __forceinline__ bool by_shapes() const {
    const schedule::Partition partition = args_.geometry.partition;
    return kMayBeWhole ? partition != schedule::Partition::kSharesByLength
                       : partition == schedule::Partition::kEvenShares;
  }
  __device__ __forceinline__ Work part_by_shapes() const {
    if constexpr (kMayBeWhole) {
      if (args_.geometry.partition != schedule::Partition::kEvenShares) return whole_part(args_);
    }
    return even_part(args_);
  }
  __device__ __forceinline__ bool is_ragged() const { return kMayBeRagged && args_.query.begins != nullptr; }

  const DecodeArguments& args_;
  Work work_;
};

}  // namespace flashlatent::sm90
