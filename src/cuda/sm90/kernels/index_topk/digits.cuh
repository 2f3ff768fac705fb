// The `wanted`-th largest key of a sequence: counts of digits say where it lies. Neither the time nor a result
// depends on the order of threads, since counts are sums of whole numbers.
#pragma once

#include "cuda/sm90/kernels/index_topk/config.h"

namespace flashlatent::cuda::indexer {

/// The first digit of a key, in the order of keys: a score's sign, its exponent within a window of 32 and six
/// bits of its mantissa. Scores that differ by more than 1.6 % have different digits, so few keys share that
/// of the wanted one. Larger and smaller magnitudes share the digits at the window's ends.
inline constexpr int kFirstBins = 4096, kFirstShift = 17, kHalfOfFirst = kFirstBins / 2;
inline constexpr int kWindowBegin = (127 - 16) << (23 - kFirstShift);  ///< 2^-16, as a magnitude's upper bits.
inline constexpr int kMostMagnitude = 0x7FFFFFFF >> kFirstShift;

__device__ __forceinline__ int first_digit(std::uint32_t key) {
  const int upper = static_cast<int>(key ^ 0x80000000U) >> kFirstShift;  // -1 - magnitude of negative scores
  const int sign = upper >> 31;
  return kHalfOfFirst + (__viaddmin_s32_relu(upper ^ sign, -kWindowBegin, kHalfOfFirst - 1) ^ sign);
}

/// Keys from `low` on: those up to `low + more`.
struct KeyRange {
  std::uint32_t low, more;

  __device__ __forceinline__ bool has(std::uint32_t key) const { return key - low <= more; }
};
/// The keys that have a first digit.
__device__ __forceinline__ KeyRange keys_of_first_digit(int digit) {
  const bool negative = digit < kHalfOfFirst;
  const int place = negative ? kHalfOfFirst - 1 - digit : digit - kHalfOfFirst;
  const int least = place == 0 ? 0 : place + kWindowBegin;
  const int most = place == kHalfOfFirst - 1 ? kMostMagnitude : place + kWindowBegin;
  const int begin = negative ? -1 - most : least;
  return {static_cast<std::uint32_t>(begin) << kFirstShift ^ 0x80000000U,
          (static_cast<std::uint32_t>(most - least + 1) << kFirstShift) - 1};
}

/// All digits, where the first one does not suffice: 11, 11 and 10 bits.
inline constexpr int kLevels = 3, kBins = 2048;
/// Where a level's digit begins.
__device__ __forceinline__ int digit_shift(int level) {
  return level == 0 ? 21 : level == 1 ? 10 : 0;
}

/// Keys of a thread, in groups of four neighbours. All threads' first groups follow one another, then their
/// second ones: a batch.
inline constexpr int kGroupsOfBatch = 4;
/// The most keys that are looked at alone, since they share the first digit of the wanted one. Of so few that
/// each can be compared with each, no digits are counted: 400 take as long as counting.
inline constexpr int kListedKeys = kMaxIndexTopk, kComparedKeys = 256;
/// CTAs that choose together add up counts of so many neighbouring digits first.
inline constexpr int kFirstDigitsOfSum = 16, kFirstSums = kFirstBins / kFirstDigitsOfSum;

template <int kThreadCount>
struct ChooseShared {
  static constexpr int kThreads = kThreadCount, kWarps = kThreads / 32;
  static constexpr int kGroup = 4 * kThreads, kBatch = kGroupsOfBatch * kGroup;  ///< Keys.

  alignas(16) std::uint32_t bins[kFirstBins];  ///< Cleared before the first count.
  alignas(16) std::uint32_t listed[kListedKeys];
  union {
    std::uint32_t gathered[kListedKeys];  ///< What all CTAs of a team have listed.
    int chosen[kMaxIndexTopk];            ///< Places.
  };
  int sums[kFirstSums];        ///< Of a team's CTA.
  int warps[2][kWarps];        ///< Sums of warps; alternately, since a barrier lies between two uses.
  int digit, above, count;     ///< What one thread finds.
  int listed_count, larger;    ///< Cleared with the bins.
};

/// The sum over lanes up to this one.
__device__ __forceinline__ int sum_to_lane(int mine) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFF, mine, step);
    if (lane >= step) mine += other;
  }
  return mine;
}

template <int kCount, class Shared>
__device__ __forceinline__ void clear_bins(Shared& shared) {
#pragma unroll
  for (int i = 0; i < kCount; i += Shared::kThreads * 4) {
    const int at = i + static_cast<int>(threadIdx.x) * 4;
    if (at < kCount) *reinterpret_cast<uint4*>(shared.bins + at) = make_uint4(0, 0, 0, 0);
  }
}
/// Before choose().
template <class Shared>
__device__ __forceinline__ void clear_counts(Shared& shared) {
  clear_bins<kFirstBins>(shared);
  if (threadIdx.x == 0) shared.listed_count = shared.larger = 0;
}

/// What is known of the `wanted`-th largest key: its upper digits, how many keys have larger ones, and how
/// many have these. If there are fewer than `wanted` keys, all digits are 0.
struct Threshold {
  std::uint32_t key = 0;
  int above = 0, equal = 0;
};

/// Finds the largest digit that, with all above it, occurs often enough; `least` if there is none. Threads have
/// digits in descending order: this one kEach from `first` on, which occur `counts` times. All threads call
/// it. `turn`: 0 and 1 in turn.
template <int kEach, class Shared>
__device__ __forceinline__ int find_among(Shared& shared, Threshold& threshold, const int (&counts)[kEach],
                                          int first, int least, int turn, int wanted) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int mine = 0;
#pragma unroll
  for (const int count : counts) mine += count;
  const int inclusive = sum_to_lane(mine);
  int* sums = shared.warps[turn];
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  const int before = __reduce_add_sync(0xFFFFFFFF, lane < warp && lane < Shared::kWarps ? sums[lane] : 0);
  int above = threshold.above + before + inclusive - mine;
  const bool here = above < wanted && above + mine >= wanted;
  if (here || (first == least && above + mine < wanted)) {
    int digit = -1, equal = 0;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {
      if (digit >= 0) continue;
      if (above + counts[i] >= wanted || first + i == least) {
        digit = first + i;
        equal = counts[i];
      } else {
        above += counts[i];
      }
    }
    shared.digit = digit;
    shared.above = above;
    shared.count = equal;
  }
  __syncthreads();
  threshold.above = shared.above;
  threshold.equal = shared.count;
  return shared.digit;
}

/// Finds a digit of kCount values when all threads have counted.
template <int kCount, class Shared>
__device__ __forceinline__ int find_digit(Shared& shared, Threshold& threshold, int turn, int wanted) {
  constexpr int kEach = kCount / Shared::kThreads;
  static_assert(kEach % 2 == 0);
  __syncthreads();
  const int first = kCount - kEach * (static_cast<int>(threadIdx.x) + 1);
  int counts[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i += 2) {
    const uint2 pair = *reinterpret_cast<const uint2*>(shared.bins + first + i);
    counts[i] = static_cast<int>(pair.x);
    counts[i + 1] = static_cast<int>(pair.y);
  }
  return find_among(shared, threshold, counts, first, 0, turn, wanted);
}

/// A batch of a thread's keys. Keys behind the end are 0, which no key is.
struct BatchKeys {
  std::uint32_t of_group[kGroupsOfBatch][4];
};

template <class Shared, class Keys>
__device__ __forceinline__ void load_batch(BatchKeys& batch, const Keys& keys, int first, int count) {
#pragma unroll
  for (int i = 0; i < kGroupsOfBatch; ++i) {
    const int at = first + i * Shared::kGroup + static_cast<int>(threadIdx.x) * 4;
    const uint4 four = keys.four(at, count);
    batch.of_group[i][0] = four.x;
    batch.of_group[i][1] = four.y;
    batch.of_group[i][2] = four.z;
    batch.of_group[i][3] = four.w;
  }
}

/// To and from shared memory, of which each thread reads what it has written.
template <class Shared>
__device__ __forceinline__ void keep_batch(const BatchKeys& batch, uint4* groups) {
#pragma unroll
  for (int i = 0; i < kGroupsOfBatch; ++i) {
    const auto& x = batch.of_group[i];
    groups[i * Shared::kThreads] = make_uint4(x[0], x[1], x[2], x[3]);
  }
}
template <class Shared>
__device__ __forceinline__ void take_batch(BatchKeys& batch, const uint4* groups) {
#pragma unroll
  for (int i = 0; i < kGroupsOfBatch; ++i) {
    const uint4 x = groups[i * Shared::kThreads];
    batch.of_group[i][0] = x.x;
    batch.of_group[i][1] = x.y;
    batch.of_group[i][2] = x.z;
    batch.of_group[i][3] = x.w;
  }
}

/// Calls visit(key) for a batch's keys; `left`: keys from the batch's begin to the end.
template <class Shared, class Visit>
__device__ __forceinline__ void for_keys(const BatchKeys& batch, int left, Visit visit) {
#pragma unroll
  for (int i = 0; i < kGroupsOfBatch; ++i) {
    if (i * Shared::kGroup >= left) break;
#pragma unroll
    for (std::uint32_t key : batch.of_group[i]) visit(key);
  }
}

/// Puts the batch's keys of a range behind those in shared.listed, in any order.
template <class Shared>
__device__ __forceinline__ void list_keys(Shared& shared, const BatchKeys& batch, const KeyRange& range) {
  int mine = 0;
#pragma unroll
  for (int i = 0; i < 4 * kGroupsOfBatch; ++i) mine += range.has(batch.of_group[i / 4][i % 4]) ? 1 : 0;
  if (mine == 0) return;
  int at = atomicAdd(&shared.listed_count, mine);
#pragma unroll
  for (int i = 0; i < 4 * kGroupsOfBatch; ++i) {
    const std::uint32_t key = batch.of_group[i / 4][i % 4];
    if (range.has(key)) shared.listed[at++] = key;
  }
}

/// How many of the batch's keys are larger than `key`.
__device__ __forceinline__ int count_above(const BatchKeys& batch, std::uint32_t key) {
  int count = 0;
#pragma unroll
  for (int i = 0; i < 4 * kGroupsOfBatch; ++i) count += batch.of_group[i / 4][i % 4] > key ? 1 : 0;
  return count;
}

/// The `wanted`-th largest of threshold.equal keys, up to kComparedKeys, above which threshold.above lie: by
/// comparing each with each. A warp has some of them, its lanes compare one with all. All threads call it,
/// behind a barrier.
template <class Shared>
__device__ __forceinline__ void compare_keys(Shared& shared, const std::uint32_t* keys, Threshold& threshold,
                                             int wanted) {
  constexpr int kEach = kComparedKeys / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int count = threshold.equal, above = threshold.above;
  std::uint32_t others[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) others[i] = lane + i * 32 < count ? keys[lane + i * 32] : 0;
#pragma unroll 2
  for (int i = warp; i < count; i += Shared::kWarps) {
    const std::uint32_t key = keys[i];
    std::uint32_t sums = 0;  // larger ones, and from bit 16 on equal ones
#pragma unroll
    for (const std::uint32_t other : others) sums += (other > key ? 1U : 0U) + (other == key ? 0x10000U : 0U);
    sums = __reduce_add_sync(0xFFFFFFFF, sums);
    const int larger = above + static_cast<int>(sums & 0xFFFF), equal = static_cast<int>(sums >> 16);
    if (lane == 0 && larger < wanted && larger + equal >= wanted) {
      shared.digit = static_cast<int>(key);  // the warps of equal keys write the same
      shared.above = larger;
      shared.count = equal;
    }
  }
  __syncthreads();
  threshold = {static_cast<std::uint32_t>(shared.digit), shared.above, shared.count};
}

}  // namespace flashlatent::cuda::indexer
