// The `wanted`-th largest key of a sequence, by digits of 11, 11 and 10 bits: a level counts how often each
// digit occurs behind the digits that are known. The time does not depend on keys, and neither do results on
// the order of threads, since counts are sums of whole numbers.
#pragma once

#include "cuda/sm90/kernels/index_topk/config.h"

namespace flashlatent::cuda::indexer {

inline constexpr int kLevels = 3, kBins = 2048;
/// Where a level's digit begins, and how many values it has.
FLASHLATENT_HOST_DEVICE constexpr int digit_shift(int level) {
  return level == 0 ? 21 : level == 1 ? 10 : 0;
}
FLASHLATENT_HOST_DEVICE constexpr int digit_values(int level) {
  return level == 2 ? 1024 : 2048;
}

/// Keys of a thread, in groups of four neighbours. All threads' first groups follow one another, then their
/// second ones: a batch.
inline constexpr int kGroupsOfBatch = 4;

template <int kThreadCount>
struct ChooseShared {
  static constexpr int kThreads = kThreadCount, kWarps = kThreads / 32;
  static constexpr int kGroup = 4 * kThreads, kBatch = kGroupsOfBatch * kGroup;  ///< Keys.

  std::uint32_t bins[kLevels][kBins];  ///< Cleared before the first level.
  int chosen[kMaxIndexTopk];           ///< Places.
  int warps[2][kWarps];                ///< Sums of warps; alternately, since a barrier lies between two uses.
  int digit, above, count;             ///< What one thread finds.
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

template <class Shared>
__device__ __forceinline__ void clear_bins(Shared& shared) {
  for (int i = static_cast<int>(threadIdx.x) * 4; i < kLevels * kBins; i += Shared::kThreads * 4) {
    *reinterpret_cast<uint4*>(&shared.bins[0][0] + i) = make_uint4(0, 0, 0, 0);
  }
}

/// What is known of the `wanted`-th largest key: its upper digits, how many keys have larger ones, and how
/// many have these. If there are fewer than `wanted` keys, all digits are 0.
struct Threshold {
  std::uint32_t key = 0;
  int above = 0, equal = 0;
};

/// Finds a level's digit: the largest one that, with all above it, occurs often enough. All threads call it
/// when they have counted.
template <class Shared>
__device__ __forceinline__ void find_digit(Shared& shared, Threshold& threshold, int level, int wanted) {
  constexpr int kEach = kBins / Shared::kThreads;
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int first = kBins - kEach * (thread + 1);  // threads have digits in descending order
  int counts[kEach], mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    counts[i] = static_cast<int>(shared.bins[level][first + i]);
    mine += counts[i];
  }
  const int inclusive = sum_to_lane(mine);
  int* sums = shared.warps[level % 2];
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  const int before = __reduce_add_sync(0xFFFFFFFF, lane < warp && lane < Shared::kWarps ? sums[lane] : 0);
  int above = threshold.above + before + inclusive - mine;
  const bool here = above < wanted && above + mine >= wanted;
  if (here || (thread == Shared::kThreads - 1 && above + mine < wanted)) {
    int digit = -1, equal = 0;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {
      if (digit >= 0) continue;
      if (above + counts[i] >= wanted || first + i == 0) {
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
  threshold.key |= static_cast<std::uint32_t>(shared.digit) << digit_shift(level);
  threshold.above = shared.above;
  threshold.equal = shared.count;
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

/// Counts a level's digits behind those of `known`.
template <int kLevel, class Shared>
__device__ __forceinline__ void count_digits(Shared& shared, const BatchKeys& batch, int left,
                                             std::uint32_t known) {
  constexpr int kAbove = kLevel == 0 ? 0 : digit_shift(kLevel - 1);
#pragma unroll
  for (int i = 0; i < kGroupsOfBatch; ++i) {
    if (i * Shared::kGroup >= left) break;
#pragma unroll
    for (std::uint32_t key : batch.of_group[i]) {
      if (kLevel > 0 && (key ^ known) >> kAbove != 0) continue;
      atomicAdd(&shared.bins[kLevel][key >> digit_shift(kLevel) & (digit_values(kLevel) - 1)], 1U);
    }
  }
}

}  // namespace flashlatent::cuda::indexer
