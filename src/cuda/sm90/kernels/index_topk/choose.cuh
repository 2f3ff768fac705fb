// The `wanted` best places of a sequence of keys, in order: those above the threshold, and of those equal to
// it the first. By a CTA. Keys stay in registers if they are no more than a batch; of more keys the first
// batches stay in shared memory, and others are read again.
#pragma once

#include "cuda/sm90/kernels/index_topk/digits.cuh"

namespace flashlatent::cuda::indexer {

/// Sums for each of a batch's four groups: of lanes before this one, and of warps.
struct GroupSums {
  int before[kGroupsOfBatch];  ///< In its group, in all threads before this one.
  int all[kGroupsOfBatch];     ///< In the group.
};

/// `counts`: this thread's four counts of up to 4, a byte each. All threads call it. `sums`: ints of warps.
template <class Shared>
__device__ __forceinline__ GroupSums sum_groups(std::uint32_t counts, int* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto inclusive = static_cast<std::uint32_t>(sum_to_lane(static_cast<int>(counts)));  // to 128 each
  if (lane == 31) sums[warp] = static_cast<int>(inclusive);
  __syncthreads();
  const std::uint32_t exclusive = inclusive - counts;
  const auto of_warp = static_cast<std::uint32_t>(lane < Shared::kWarps ? sums[lane] : 0);
  GroupSums result;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Two groups at a time, 16 bits each: a group has up to 4,096.
    const std::uint32_t pair = (of_warp >> 16 * half & 0xFF) | (of_warp >> (16 * half + 8) & 0xFF) << 16;
    const std::uint32_t before = __reduce_add_sync(0xFFFFFFFF, lane < warp ? pair : 0);
    const std::uint32_t all = __reduce_add_sync(0xFFFFFFFF, pair);
    result.before[2 * half] = static_cast<int>((before & 0xFFFF) + (exclusive >> 16 * half & 0xFF));
    result.before[2 * half + 1] = static_cast<int>((before >> 16) + (exclusive >> (16 * half + 8) & 0xFF));
    result.all[2 * half] = static_cast<int>(all & 0xFFFF);
    result.all[2 * half + 1] = static_cast<int>(all >> 16);
  }
  return result;
}

/// Bits 4 i to 4 i + 3 of `marks` are of group i: their counts, a byte each.
__device__ __forceinline__ std::uint32_t counts_of_groups(unsigned marks) {
  return static_cast<std::uint32_t>(__popc(marks & 0xF) | __popc(marks & 0xF0) << 8 |
                                    __popc(marks & 0xF00) << 16 | __popc(marks & 0xF000) << 24);
}

/// A bit for each of a batch's keys that is at least `least`.
__device__ __forceinline__ unsigned marks_from(const BatchKeys& batch, std::uint32_t least) {
  unsigned marks = 0;
#pragma unroll
  for (int i = 0; i < 4 * kGroupsOfBatch; ++i) {
    if (batch.of_group[i / 4][i % 4] >= least) marks |= 1U << i;
  }
  return marks;
}

/// Calls visit(bit, number) for the bits of `marks`, where `number` counts the group's marks from `begins`
/// on.
template <class Visit>
__device__ __forceinline__ void for_marks(unsigned marks, const int (&begins)[kGroupsOfBatch], Visit visit) {
#pragma unroll
  for (int i = 0; i < kGroupsOfBatch; ++i) {
    int number = begins[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((marks >> (4 * i + j) & 1) != 0) visit(4 * i + j, number++);
    }
  }
}

/// Where the marks of a thread's groups begin in order; `at` is advanced behind all.
__device__ __forceinline__ void begin_groups(int (&begins)[kGroupsOfBatch], const GroupSums& sums, int& at) {
#pragma unroll
  for (int i = 0; i < kGroupsOfBatch; ++i) {
    begins[i] = at + sums.before[i];
    at += sums.all[i];
  }
}

/// Shared memory for keys.
struct HeldKeys {
  uint4* groups = nullptr;
  int count = 0;
};

/// A sequence of keys, a batch at a time. each() calls visit(first) with the keys from `first` on in `batch`.
/// `again`: not for the first time; keys are then where they were left.
template <class Shared, class Keys>
class Batches {
 public:
  __device__ __forceinline__ Batches(const HeldKeys& held, const Keys& keys, int count)
      : held_(held), keys_(keys), count_(count), stay_(count <= Shared::kBatch) {}

  __device__ __forceinline__ int count() const { return count_; }

  template <class Visit>
  __device__ __forceinline__ void each(BatchKeys& batch, bool again, Visit visit) const {
#pragma unroll 1
    for (int first = 0; first < count_; first += Shared::kBatch) {
      const bool is_held = !stay_ && first + Shared::kBatch <= held_.count;
      uint4* groups = held_.groups + first / 4 + threadIdx.x;
      if (again && is_held) {
        take_batch<Shared>(batch, groups);
      } else if (!again || !stay_) {
        load_batch<Shared>(batch, keys_, first, count_);
        if (is_held) keep_batch<Shared>(batch, groups);
      }
      visit(first);
    }
  }

 private:
  const HeldKeys& held_;
  const Keys& keys_;
  const int count_;
  const bool stay_;
};

/// Keys in shared memory.
struct SharedKeys {
  const std::uint32_t* keys;

  __device__ __forceinline__ uint4 four(int place, int end) const {
    const auto one = [&](int i) { return place + i < end ? keys[place + i] : 0; };
    return make_uint4(one(0), one(1), one(2), one(3));
  }
};

/// Finds the `wanted`-th largest key by all of its digits. `batch`: of few keys it holds all.
template <class Shared, class Keys>
__device__ __forceinline__ Threshold find_all_digits(Shared& shared, const Batches<Shared, Keys>& batches,
                                                     BatchKeys& batch, int wanted) {
  Threshold threshold;
#pragma unroll 1
  for (int level = 0; level < kLevels; ++level) {
    const int shift = digit_shift(level);
    const std::uint32_t known = level == 0 ? 0 : 0xFFFFFFFFU << digit_shift(level - 1);
    __syncthreads();
    clear_bins<kBins>(shared);
    __syncthreads();
    batches.each(batch, true, [&](int first) {
      for_keys<Shared>(batch, batches.count() - first, [&](std::uint32_t key) {
        if (((key ^ threshold.key) & known) == 0) atomicAdd(&shared.bins[(key & ~known) >> shift], 1U);
      });
    });
    threshold.key |= static_cast<std::uint32_t>(find_digit<kBins>(shared, threshold, level % 2, wanted))
                     << shift;
  }
  return threshold;
}

/// Counts keys by their first digit. `batch`: of few keys it holds all afterwards.
template <class Shared, class Keys>
__device__ __forceinline__ void count_first_digits(Shared& shared, const Batches<Shared, Keys>& batches,
                                                   BatchKeys& batch) {
  batches.each(batch, false, [&](int first) {
    for_keys<Shared>(batch, batches.count() - first,
                     [&](std::uint32_t key) { atomicAdd(&shared.bins[first_digit(key)], 1U); });
  });
}

/// Completes a threshold of which the first digit is known, from all keys that have it: threshold.equal `keys`.
/// All threads call it, behind a barrier.
template <class Shared>
__device__ __forceinline__ void find_among_listed(Shared& shared, const std::uint32_t* keys,
                                                  Threshold& threshold, int wanted) {
  if (threshold.equal <= kComparedKeys) return compare_keys(shared, keys, threshold, wanted);
  const HeldKeys none;
  const SharedKeys listed{keys};
  const Batches<Shared, SharedKeys> batches(none, listed, threshold.equal);
  BatchKeys batch;
  batches.each(batch, false, [](int) {});
  const int above = threshold.above;
  threshold = find_all_digits(shared, batches, batch, wanted - above);
  threshold.above += above;
}

/// Is what the first digit says enough? Places without a key have the digit 0, too.
__device__ __forceinline__ bool can_list(int digit, const Threshold& threshold) {
  return digit > 0 && threshold.equal <= kListedKeys;
}

/// The first of a CTA's keys that are wanted: how many other CTAs' are chosen before it, and how many of these
/// equal the threshold.
struct Begin {
  int chosen = 0, ties = 0;
};

/// Leaves the places of the keys from the threshold on in shared.chosen, in order, and returns how many there
/// are. Of equal keys the first are chosen. All threads call it, and read the places behind a barrier.
template <class Shared, class Keys>
__device__ __forceinline__ int place_chosen(Shared& shared, const Batches<Shared, Keys>& batches,
                                            BatchKeys& batch, const Threshold& threshold, int wanted,
                                            const Begin& begin) {
  // Of equal keys `left` are wanted; 0 is no key.
  const std::uint32_t least = threshold.key == 0 ? 1 : threshold.key;
  const int left = wanted - threshold.above;
  const bool some_ties = threshold.key != 0 && threshold.equal > left;
  int at = 0, ties_before = begin.ties, turn = 0;
  batches.each(batch, true, [&](int first) {
    unsigned marks = marks_from(batch, least);
    int begins[kGroupsOfBatch];
    if (some_ties) {
      const unsigned better = least == 0xFFFFFFFFU ? 0 : marks_from(batch, least + 1), ties = marks & ~better;
      begin_groups(begins, sum_groups<Shared>(counts_of_groups(ties), shared.warps[turn ^= 1]), ties_before);
      marks = better;
      for_marks(ties, begins, [&](int bit, int number) {
        if (number < left) marks |= 1U << bit;
      });
    }
    begin_groups(begins, sum_groups<Shared>(counts_of_groups(marks), shared.warps[turn ^= 1]), at);
    for_marks(marks, begins, [&](int bit, int number) {
      shared.chosen[number] = first + bit / 4 * Shared::kGroup + static_cast<int>(threadIdx.x) * 4 + bit % 4;
    });
  });
  return at;
}

/// Chooses the `wanted` best of a CTA's keys: leaves their places in shared.chosen, and returns how many there
/// are. All threads call it, behind a barrier and with cleared counts, and read the places behind another
/// barrier. `Keys`: four(place, end), keys of four places, 0 from `end` on.
///
/// Keys are counted by their first digit. Those that share the wanted key's are few, and are looked at alone.
template <class Shared, class Keys>
__device__ __forceinline__ int choose(Shared& shared, const HeldKeys& held, const Keys& keys, int count,
                                      int wanted) {
  const Batches<Shared, Keys> batches(held, keys, count);
  BatchKeys batch;
  count_first_digits(shared, batches, batch);
  Threshold threshold;
  const int digit = find_digit<kFirstBins>(shared, threshold, 0, wanted);
  if (can_list(digit, threshold)) {
    const KeyRange range = keys_of_first_digit(digit);
    batches.each(batch, true, [&](int) { list_keys(shared, batch, range); });
    __syncthreads();
    find_among_listed(shared, shared.listed, threshold, wanted);
  } else {
    threshold = find_all_digits(shared, batches, batch, wanted);
  }
  return place_chosen(shared, batches, batch, threshold, wanted, {});
}

}  // namespace flashlatent::cuda::indexer
