// A part's segments, some at a time, in shared memory: nobody has registers for the walk while it computes.
//
// One thread lists up to kListed of them before its warpgroup has anything to do; the first one is announced
// at once. When all roles have done with a list that has no end they meet, and the next one is made.
#pragma once

#include "cuda/parts/segments.cuh"
#include "cuda/trio/smem_layout.cuh"

namespace flashlatent::trio {

/// The same in all lanes, and known to be: ptxas then keeps in uniform registers what depends on it.
__device__ __forceinline__ int uniform(int x) {
  return __shfl_sync(0xffffffff, x, 0);
}

/// By one thread: the part's next ones. Where the walk has come to is all that is kept of it from list to
/// list.
template <class Config>
__device__ __forceinline__ void list_segments(SharedMemory<Config>& shared,
                                              const parts::DecodeArguments& args, bool is_first) {
  const parts::PartPlace<> place(args);
  parts::Segments<> segments(args, place.lane(), is_first ? place.begin(args) : shared.walked_to,
                             place.end(args));
#pragma unroll 1
  for (int i = 0; i < kListed; ++i) {
    parts::Work work;
    if (segments.next(work.segment)) {
      work.tile = segments.tile_of(work.segment);
    } else {
      work.segment.request = -1;
    }
    shared.list[i] = work;
    if (i == 0) ptx::arrive(shared.first_listed);
    if (work.is_end()) break;
  }
  shared.walked_to = segments.at();
  ptx::arrive(shared.all_listed);
}

/// A role's place in the list.
template <class Config>
class ListPosition {
 public:
  __device__ __forceinline__ explicit ListPosition(SharedMemory<Config>& shared) : shared_(shared) {}

  /// The item here: the end, or a segment.
  __device__ __forceinline__ const parts::Work& get() const {
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

 private:
  SharedMemory<Config>& shared_;
  int item_ = 0;
  std::uint32_t parity_ = 0;
};

/// Of a segment, the tokens that there are.
__device__ __forceinline__ int first_token(const schedule::Segment& segment) {
  return segment.block_begin * 64;
}
__device__ __forceinline__ int last_token(const schedule::Segment& segment) {
  return min(segment.block_end * 64, segment.length);
}
/// How many stages they are.
__device__ __forceinline__ int stages_of(const schedule::Segment& segment) {
  return (last_token(segment) - first_token(segment) + kStageTokens - 1) / kStageTokens;
}

}  // namespace flashlatent::trio
