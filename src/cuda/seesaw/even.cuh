// Even parts (schedule::kEven): a CTA, or a team of them, has one segment, a share of its request's blocks,
// and shapes tell which, so that nobody reads the plan or walks it. A walk is in local memory, of which each
// trip is one to L2: with one the computing warps knew of their segment 3.3 us after the launch before. Of
// several requests that teams share the plan tells (schedule::kByLength), and is read along with all lengths.
#pragma once

#include "cuda/parts/work_queue.cuh"
#include "plan/shares.h"

namespace flashlatent::seesaw {

/// How many of its blocks the computing warps load themselves, one a warpgroup.
inline constexpr int kFirstBlocks = 2;

/// The part that is cut so. What stands for its blocks is which share it has, and of how many. One that is
/// left over is an end.
template <int kTeam>
__device__ __forceinline__ parts::Work part_of(const parts::DecodeArguments& args, const schedule::Cut& cut) {
  parts::Work work;
  work.segment = {0, cut.round > 0 ? cut.request : -1, 0, cut.block, cut.round, cut.slot};
  if (!work.is_end())
    work.tile = parts::row_tile(args, cut.request, 0, args.lanes.remainder(blockIdx.x / kTeam));
  return work;
}

/// The part of this CTA or its team: nothing is read from memory, unless queries are ragged.
template <int kTeam = 1>
__device__ __forceinline__ parts::Work even_part(const parts::DecodeArguments& args) {
  const schedule::Geometry& g = args.geometry;
  return part_of<kTeam>(args, schedule::even_cut(g, args.lanes.quotient(blockIdx.x / kTeam)));
}

/// Puts the blocks in their place.
__device__ __forceinline__ void place_blocks(const schedule::Geometry& g, parts::Work& work, int length) {
  schedule::Segment& segment = work.segment;
  const int share = segment.block_begin, shares = segment.block_end;
  segment.length = schedule::tokens_of(g, length);
  const int blocks = schedule::blocks_of(g, segment.length);
  segment.block_begin = schedule::share_begin(blocks, shares, share);
  segment.block_end = schedule::share_begin(blocks, shares, share + 1);
}

/// The same where the length may be read.
__device__ __forceinline__ void find_blocks(const parts::DecodeArguments& args, parts::Work& work) {
  const schedule::Geometry& g = args.geometry;
  place_blocks(g, work, schedule::length_of(g, args.cache.lengths, work.segment.request));
}

/// The part of this team as the plan has it, with its blocks in place. By a warp, in one trip to memory: a
/// lane reads each request's length.
template <int kTeam>
__device__ __forceinline__ parts::Work planned_part(const parts::DecodeArguments& args) {
  const schedule::Geometry& g = args.geometry;
  const int lane = threadIdx.x % 32;
  const int length = lane < g.requests ? schedule::length_of(g, args.cache.lengths, lane) : 0;
  parts::Work work = part_of<kTeam>(args, args.cuts[args.lanes.quotient(blockIdx.x / kTeam)]);
  const int of_request = __shfl_sync(0xffffffff, length, max(work.segment.request, 0));
  if (!work.is_end()) place_blocks(g, work, of_request);
  return work;
}

/// A CTA's share of its team's part, whose blocks are in place.
template <int kTeam>
__device__ __forceinline__ parts::Work take_share(const parts::Work& part) {
  parts::Work work = part;
  const int blocks = part.tile.rows == 0 ? 0 : part.blocks();
  const int rank = blockIdx.x % kTeam, begin = part.segment.block_begin;
  work.segment.block_begin = begin + schedule::share_begin(blocks, kTeam, rank);
  work.segment.block_end = begin + schedule::share_begin(blocks, kTeam, rank + 1);
  return work;
}

/// When all that the other CTA of the cluster has to do here is done, and it has all that it takes from here.
/// All threads, once.
__device__ __forceinline__ void leave_cluster() {
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace flashlatent::seesaw
