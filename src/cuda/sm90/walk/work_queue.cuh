// Hands segments from the loading role, which walks the plan, to the computing warpgroups, which then need
// neither code nor registers for the walk.
#pragma once

#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::sm90 {

struct Work {
  schedule::Segment segment;
  RowTile tile;

  __device__ __forceinline__ int blocks() const { return segment.block_end - segment.block_begin; }
  /// Is this the end, behind the last segment?
  __device__ __forceinline__ bool is_end() const { return segment.request < 0; }
};

inline constexpr int kWorkSlots = 4;

/// A queue of Work, or of a type that begins with it.
template <class T>
struct WorkQueueOf {
  T work[kWorkSlots];
  ptx::Barrier full[kWorkSlots], empty[kWorkSlots];

  /// One thread puts items; `takers` arrivals free a slot.
  __device__ __forceinline__ void init(int takers) {
    for (int i = 0; i < kWorkSlots; ++i) {
      ptx::init(full[i], 1);
      ptx::init(empty[i], takers);
    }
  }
};

using WorkQueue = WorkQueueOf<Work>;

/// A place in the queue. The putter and each taker have one and move it on.
template <class T>
class WorkPositionOf {
 public:
  __device__ __forceinline__ explicit WorkPositionOf(WorkQueueOf<T>& queue) : queue_(queue) {}

  __device__ __forceinline__ void put(const T& work) {
    ptx::wait(queue_.empty[slot()], parity() ^ 1);
    queue_.work[slot()] = work;
    ptx::arrive(queue_.full[slot()]);
    ++index_;
  }

  /// The item here; waits until it has been put.
  __device__ __forceinline__ const T& get() const {
    ptx::wait(queue_.full[slot()], parity());
    return queue_.work[slot()];
  }

  /// Frees this slot (with one arrival of each taking warp) and goes to the next.
  __device__ __forceinline__ void next() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::arrive(queue_.empty[slot()]);
    ++index_;
  }

  __device__ __forceinline__ WorkPositionOf ahead() const {
    WorkPositionOf position = *this;
    ++position.index_;
    return position;
  }

 private:
  __device__ __forceinline__ int slot() const { return index_ % kWorkSlots; }
  __device__ __forceinline__ std::uint32_t parity() const { return index_ / kWorkSlots % 2; }

  WorkQueueOf<T>& queue_;
  std::uint32_t index_ = 0;
};
using WorkPosition = WorkPositionOf<Work>;

}  // namespace flashlatent::sm90
