// A part's segments, some at a time, in shared memory: no role has registers for the walk while it computes.
//
// One warp lists up to kListed segments before its warpgroup has anything to do, and announces the first one
// at once. If the list does not contain the end, all roles synchronise when they are done with it, and the
// next list is made.
#pragma once

#include "cuda/sm90/walk/segments.cuh"
#include "cuda/sm90/walk/shares.cuh"
#include "cuda/sm90/walk/work_queue.cuh"
#include "plan/turns.h"

namespace flashlatent::sm90 {

/// Segments of a list.
inline constexpr int kListed = 8;
/// Up to this many requests, lengths and order are loaded together with the plan's cuts: one trip to memory
/// less, 0.5 us.
inline constexpr int kFewRequests = 32;

/// In shared memory.
struct SegmentList {
  ptx::Barrier first_listed, all_listed, list_read;
  Work list[kListed];
  schedule::Cut walked_to;
  std::int32_t lengths[kFewRequests], successors[kFewRequests];

  /// Called by one thread; `readers` threads read.
  __device__ __forceinline__ void init(int readers) {
    ptx::init(first_listed, 1);
    ptx::init(all_listed, 1);
    ptx::init(list_read, readers);
  }
};

/// A warp lists the part's next segments. kTurns: for schedule::Partition::kTurns. From list to list only the
/// place that the walk has reached is kept. kLists: tokens are of two lists (listed_tokens.cuh).
template <bool kTurns, bool kLists = false>
__device__ __forceinline__ void list_segments(SegmentList& shared, const DecodeArguments& args,
                                              bool is_first) {
  const schedule::Geometry& g = args.geometry;
  const PartPlace<1, kTurns> place(args);
  const int lane = threadIdx.x % 32;
  auto lengths = item_lengths<kLists>(args.cache);
  const std::int32_t* successors = args.successors;
  const schedule::Cut begin = is_first ? place.begin(args) : shared.walked_to, end = place.end(args);
  if constexpr (!kLists) {
    if (g.requests <= kFewRequests) {
      if (is_first) {
        std::int32_t length = 0, successor = 0;
        const int count = g.length_sharers == 1 ? g.requests : args.sharers.quotient(g.requests);
        if (lengths != nullptr && lane < count) length = lengths[lane];
        if (successors != nullptr && lane < g.requests) successor = successors[lane];
        shared.lengths[lane] = length;
        shared.successors[lane] = successor;
      }
      __syncwarp();
      if (lengths != nullptr) lengths = shared.lengths;
      if (successors != nullptr) successors = shared.successors;
    }
  }
  if (lane > 0) return;
  Segments<1, true, kLists, kTurns> segments(args, place.lane(), begin, end, lengths, successors);
#pragma unroll 1
  for (int i = 0; i < kListed; ++i) {
    schedule::Segment segment;
    const bool is_end = !segments.next(segment);
    if (is_end) {
      // Only the request is set: a field that is never set would be live through the loop over blocks, and
      // ptxas would spill it.
      shared.list[i].segment.request = -1;
    } else {
      shared.list[i] = {segment, segments.tile_of(segment)};
    }
    if (i == 0) ptx::arrive(shared.first_listed);
    if (is_end) break;
  }
  shared.walked_to = segments.at();
  ptx::arrive(shared.all_listed);
}

/// Are parts whole items by kTurns, or one whole item each, which shapes tell? Then no plan is read.
__device__ __forceinline__ bool is_in_turn(const DecodeArguments& args) {
  const schedule::Partition partition = args.geometry.partition;
  return args.query.begins == nullptr &&
         (partition == schedule::Partition::kWhole || partition == schedule::Partition::kTurns);
}

/// A warp lists a part's next items if is_in_turn() holds and tokens are of two lists.
__device__ __forceinline__ void list_in_turn(SegmentList& shared, const DecodeArguments& args,
                                             bool is_first) {
  if (threadIdx.x % 32 == 0) {
    const schedule::Geometry& g = args.geometry;
    schedule::Cut at = is_first ? schedule::whole_cut(g, args.lanes.quotient(blockIdx.x)) : shared.walked_to;
#pragma unroll 1
    for (int i = 0; i < kListed; ++i) {
      Work work = whole_item(args, at);
      const bool is_end = work.is_end();
      if (is_end) {
        shared.list[i].segment.request = -1;  // only this, as above
      } else {
        place_blocks(g, work, schedule::length_of(g, args.cache.list_lengths, work.segment.request));
        shared.list[i] = work;
      }
      if (i == 0) ptx::arrive(shared.first_listed);
      if (is_end) break;
      at = schedule::turn_after(g, at);
    }
    shared.walked_to = at;
    ptx::arrive(shared.all_listed);
  }
  __syncwarp();
}

/// A warp makes the list if a part is one segment (walk/shares.cuh): this segment, or an end.
__device__ __forceinline__ void list_share(SegmentList& shared, const Work& work) {
  if (threadIdx.x % 32 == 0) {
    shared.list[0] = work;
    shared.list[1].segment.request = -1;
    ptx::arrive(shared.first_listed);
    ptx::arrive(shared.all_listed);
  }
  __syncwarp();
}

/// A role's walk over such a list: a loop of one iteration, since without a loop ptxas may compute
/// descriptors' addresses for each product.
template <class Attend>
__device__ __forceinline__ void attend_share(SegmentList& shared, Attend attend) {
  ptx::wait(shared.first_listed, 0);
  for (const Work* work = shared.list; !work->is_end(); ++work) attend(*work);
}

/// A role's place in the list.
class ListPosition {
 public:
  __device__ __forceinline__ explicit ListPosition(SegmentList& shared) : shared_(shared) {}

  /// The item here: a segment, or the end.
  __device__ __forceinline__ const Work& get() const {
    ptx::wait(item_ == 0 ? shared_.first_listed : shared_.all_listed, parity_);
    return shared_.list[item_];
  }
  /// Goes to the next item. True if the list is finished: then all threads synchronise.
  __device__ __forceinline__ bool next() {
    if (++item_ < kListed) return false;
    item_ = 0;
    ptx::arrive(shared_.list_read);
    ptx::wait(shared_.list_read, parity_);
    parity_ ^= 1;
    return true;
  }
  __device__ __forceinline__ std::uint32_t parity() const { return parity_; }
  /// The item after this one; null if it is not in this list.
  __device__ __forceinline__ const Work* next_listed() const {
    if (item_ + 1 == kListed) return nullptr;
    ptx::wait(shared_.all_listed, parity_);
    return &shared_.list[item_ + 1];
  }

 private:
  SegmentList& shared_;
  int item_ = 0;
  std::uint32_t parity_ = 0;
};

/// The walk of the role whose warp `lister` makes the lists, before it has anything else to do: calls
/// `begin(parity)` at each list's begin and `attend(work)` for each segment. kLists: tokens are of two lists,
/// and parts may be whole items by kTurns.
template <bool kTurns = false, bool kLists = false, class Begin, class Attend>
__device__ __forceinline__ void list_and_attend(SegmentList& shared, const DecodeArguments& args, int lister,
                                                Begin begin, Attend attend) {
  ListPosition position(shared);
  bool is_first = true;
  do {
    if (threadIdx.x / 32 == lister) {
      if (kLists && is_in_turn(args)) {
        list_in_turn(shared, args, is_first);
      } else {
        list_segments<kTurns, kLists>(shared, args, is_first);
      }
    }
    is_first = false;
    __syncwarp();
    begin(position.parity());
    for (;;) {
      if (position.get().is_end()) return;
      attend(position.get());
      if (position.next()) break;
    }
  } while (true);
}

}  // namespace flashlatent::sm90
