// A part's segments, some at a time, in shared memory: nobody has registers for the walk while it computes.
//
// One warp lists up to kListed of them before its warpgroup has anything to do; the first one is announced
// at once. When all roles have done with a list that has no end they meet, and the next one is made.
#pragma once

#include "cuda/parts/segments.cuh"
#include "cuda/parts/work_queue.cuh"

namespace flashlatent::parts {

/// Segments of the part that are listed at once.
inline constexpr int kListed = 8;
/// Of so few requests lengths and order are read along with the plan's cuts: one trip to memory less, 0.5 us.
inline constexpr int kFewRequests = 32;

/// In shared memory.
struct SegmentList {
  ptx::Barrier first_listed, all_listed, list_read;
  Work list[kListed];
  schedule::Cut walked_to;
  std::int32_t lengths[kFewRequests], successors[kFewRequests];

  /// One thread; `readers` threads read.
  __device__ __forceinline__ void init(int readers) {
    ptx::init(first_listed, 1);
    ptx::init(all_listed, 1);
    ptx::init(list_read, readers);
  }
};

/// By a warp: the part's next ones, with kTurns of schedule::Partition::kTurns. Where the walk has come to is
/// all that is kept of it from list to list. kLists: tokens are of two lists (listed_tokens.cuh).
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
        if (lengths != nullptr && lane < args.sharers.quotient(g.requests)) length = lengths[lane];
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
      // Not whole: what is never set is live through the loop over blocks, too, so that ptxas spills it.
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

/// By a warp, where a part is one segment (parts/shares.cuh): that, or an end, is all of the list.
__device__ __forceinline__ void list_share(SegmentList& shared, const Work& work) {
  if (threadIdx.x % 32 == 0) {
    shared.list[0] = work;
    shared.list[1].segment.request = -1;
    ptx::arrive(shared.first_listed);
    ptx::arrive(shared.all_listed);
  }
  __syncwarp();
}

/// The walk of a role then, by a loop of one turn: without a loop ptxas may make descriptors' addresses anew
/// for each product.
template <class Attend>
__device__ __forceinline__ void attend_share(SegmentList& shared, Attend attend) {
  ptx::wait(shared.first_listed, 0);
  for (const Work* work = shared.list; !work->is_end(); ++work) attend(*work);
}

/// A role's place in the list.
class ListPosition {
 public:
  __device__ __forceinline__ explicit ListPosition(SegmentList& shared) : shared_(shared) {}

  /// The item here: the end, or a segment.
  __device__ __forceinline__ const Work& get() const {
    ptx::wait(item_ == 0 ? shared_.first_listed : shared_.all_listed, parity_);
    return shared_.list[item_];
  }
  /// Whether it was the last one listed: then all threads meet.
  __device__ __forceinline__ bool next() {
    if (++item_ < kListed) return false;
    item_ = 0;
    ptx::arrive(shared_.list_read);
    ptx::wait(shared_.list_read, parity_);
    parity_ ^= 1;
    return true;
  }
  __device__ __forceinline__ std::uint32_t parity() const { return parity_; }
  /// The item after this one, or null if it is not of this list.
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

/// The walk of the role of which warp `lister` lists, before it has anything else to do: `begin(parity)` at
/// each list's begin, `attend(work)` for each segment.
template <bool kTurns = false, class Begin, class Attend>
__device__ __forceinline__ void list_and_attend(SegmentList& shared, const DecodeArguments& args, int lister,
                                                Begin begin, Attend attend) {
  ListPosition position(shared);
  bool is_first = true;
  do {
    if (threadIdx.x / 32 == lister) list_segments<kTurns>(shared, args, is_first);
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

}  // namespace flashlatent::parts
