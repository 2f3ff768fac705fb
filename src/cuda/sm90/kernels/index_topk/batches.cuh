// A CTA's keys, 16 a thread at a time. Keys stay in registers if they are no more than that; of more the
// first batches stay in shared memory, and others are read again.
#pragma once

#include "cuda/sm90/kernels/index_topk/digits.cuh"
#include "cuda/sm90/ptx/barrier.cuh"

namespace flashlatent::cuda::indexer {

/// Keys of a thread, in groups of four neighbours. All threads' first groups follow one another, then their
/// second ones. Keys behind the end are 0, which no key is.
inline constexpr int kGroupsOfBatch = 4, kGroupKeys = 4 * kChooseThreads,
                     kBatchKeys = kGroupsOfBatch * kGroupKeys;

struct Batch {
  std::uint32_t of_group[kGroupsOfBatch][4];
  int first;   ///< The place of the first thread's first key.
  int groups;  ///< The others have no keys.

  /// The place of this thread's first key of a group.
  __device__ __forceinline__ int place(int group) const {
    return first + group * kGroupKeys + static_cast<int>(threadIdx.x) * 4;
  }
  /// Calls visit(key) for the groups' keys.
  template <class Visit>
  __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll
    for (int group = 0; group < kGroupsOfBatch; ++group) {
      if (group >= groups) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) visit(of_group[group][i]);
    }
  }
};

/// Shared memory for keys.
struct HeldKeys {
  uint4* groups = nullptr;
  int count = 0;
};

/// `Keys`: four(place, end), keys of four places, 0 from `end` on.
template <class Keys>
class Batches {
 public:
  __device__ __forceinline__ Batches(const HeldKeys& held, const Keys& keys, int count)
      : held_(held), keys_(keys), count_(count), stay_(count <= kBatchKeys) {}

  /// Calls visit() with one after the other in `batch`, which is left as it is between two calls.
  /// `again`: in all calls but the first.
  template <class Visit>
  __device__ __forceinline__ void each(Batch& batch, bool again, Visit visit) const {
#pragma unroll 1
    for (int first = 0; first < count_; first += kBatchKeys) {
      const bool is_held = !stay_ && first + kBatchKeys <= held_.count;
      uint4* held = held_.groups + first / 4 + threadIdx.x;
      batch.first = first;
      batch.groups = min((count_ - first - 1) / kGroupKeys + 1, kGroupsOfBatch);
      if (again && is_held) {
#pragma unroll
        for (int i = 0; i < kGroupsOfBatch; ++i) put(batch, i, held[i * kChooseThreads]);
      } else if (!again || !stay_) {
#pragma unroll
        for (int i = 0; i < kGroupsOfBatch; ++i) put(batch, i, keys_.four(batch.place(i), count_));
        if (is_held) {
#pragma unroll
          for (int i = 0; i < kGroupsOfBatch; ++i) {
            const auto& x = batch.of_group[i];
            held[i * kChooseThreads] = make_uint4(x[0], x[1], x[2], x[3]);
          }
        }
      }
      visit();
    }
  }

 private:
  static __device__ __forceinline__ void put(Batch& batch, int group, const uint4& four) {
    batch.of_group[group][0] = four.x;
    batch.of_group[group][1] = four.y;
    batch.of_group[group][2] = four.z;
    batch.of_group[group][3] = four.w;
  }

  const HeldKeys& held_;
  const Keys& keys_;
  const int count_;
  const bool stay_;
};

}  // namespace flashlatent::cuda::indexer
