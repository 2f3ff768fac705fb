// Digits of keys, and which digit the `wanted`-th largest key has. Results do not depend on the order of
// threads, since counts are sums of whole numbers.
//
// A CTA's time is mostly instructions, which for whole numbers run at half rate: for 8,192 keys one more for
// each key takes 128 clocks, one more for each thread 8.
#pragma once

#include "cuda/sm90/kernels/index_topk/config.h"
#include "cuda/sm90/ptx/logic.cuh"

namespace flashlatent::cuda::indexer {

/// The first digit of a key, in the order of keys: a score's sign, its exponent within a window of 32 and six
/// bits of its mantissa. Scores that differ by more than 1.6 % have different digits, so few keys share that
/// of the wanted one. Larger and smaller magnitudes share the digits at the window's ends.
inline constexpr int kFirstBins = 4096, kFirstShift = 17, kHalfOfFirst = kFirstBins / 2;
inline constexpr int kWindowBegin = (127 - 16)
                                    << (23 - kFirstShift);  ///< 2^-16, as a magnitude's upper bits.
inline constexpr int kMostMagnitude = 0x7FFFFFFF >> kFirstShift;

/// Four times a key's first digit less kHalfOfFirst.
__device__ __forceinline__ int first_digit_bytes(std::uint32_t key) {
  constexpr int kShift = kFirstShift - 2, kMagnitudes = 1 << (31 - kShift);
  const int sign = static_cast<int>(key) >> 31;  // -1: of scores that are not negative
  // The magnitude's upper bits - kMagnitudes.
  const int upper = ptx::logic<ptx::kEqualBits>(static_cast<int>(key) >> kShift, sign, 0);
  const int place = __viaddmin_s32_relu(upper, kMagnitudes - 4 * kWindowBegin, 4 * kHalfOfFirst - 1);
  return ptx::logic<ptx::kEqualBits & ptx::kThird>(place, sign, ~3);
}

/// Keys from `low` to low + more.
struct KeyRange {
  std::uint32_t low, more;
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

/// Further digits, where the first one does not suffice, have up to 11 bits.
inline constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;

/// The most keys that are looked at alone, since they share the first digit of the wanted one. Of so few that
/// each can be compared with each, no digits are counted.
inline constexpr int kListedKeys = kMaxIndexTopk, kComparedKeys = 128;
/// CTAs that choose together add up counts of so many neighbouring digits first.
inline constexpr int kFirstDigitsOfSum = 16, kFirstSums = kFirstBins / kFirstDigitsOfSum;

/// What a CTA has in shared memory to choose.
struct ChooseShared {
  alignas(16) std::uint32_t bins[kFirstBins];  ///< Cleared before the first count.
  alignas(16) std::uint32_t listed[kListedKeys];
  int chosen[kMaxIndexTopk];   ///< Places.
  int warps[2][kChooseWarps];  ///< Sums of warps; alternately, since a barrier lies between two uses.
  int digit, above, count;     ///< What one thread finds.
  std::uint32_t listed_bytes;  ///< Cleared with the bins.
  int larger;                  ///< Keys of a team's lower ranks above the listed ones. Cleared with the bins.
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

template <int kCount>
__device__ __forceinline__ void clear_bins(ChooseShared& shared) {
#pragma unroll
  for (int i = 0; i < kCount; i += kChooseThreads * 4) {
    *reinterpret_cast<uint4*>(shared.bins + i + threadIdx.x * 4) = make_uint4(0, 0, 0, 0);
  }
}
/// Before find_threshold().
__device__ __forceinline__ void clear_counts(ChooseShared& shared) {
  clear_bins<kFirstBins>(shared);
  if (threadIdx.x != 0) return;
  shared.listed_bytes = 0;
  shared.larger = 0;
}

/// What is known of the `wanted`-th largest key: its upper digits, how many keys have larger ones, and how
/// many have these. If there are fewer than `wanted` keys, all digits are 0.
struct Threshold {
  std::uint32_t key = 0;
  int above = 0, equal = 0;
};

/// Finds the largest digit that, with all above it, occurs often enough; `least` if there is none. Threads
/// have digits in descending order: this one kEach from `first` on, which occur `counts` times. All threads
/// call it. `turn`: 0 and 1 in turn.
template <int kEach>
__device__ __forceinline__ int find_among(ChooseShared& shared, Threshold& threshold,
                                          const int (&counts)[kEach], int first, int least, int turn,
                                          int wanted) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int mine = 0;
#pragma unroll
  for (const int count : counts) mine += count;
  const int inclusive = sum_to_lane(mine);
  int* sums = shared.warps[turn];
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  int above =
      threshold.above + inclusive - mine + __reduce_add_sync(0xFFFFFFFF, lane < warp ? sums[lane] : 0);
  const bool here = above < wanted && above + mine >= wanted;
  if (here || (first == least && above + mine < wanted)) {
    int digit = first + kEach - 1, sum = above, enough = 0x7FFFFFFF;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {
      sum += counts[i];
      if (sum < wanted && (i > 0 || first > least)) {
        --digit;
        above = sum;
      } else {
        enough = min(enough, sum);
      }
    }
    shared.digit = digit;
    shared.above = above;
    shared.count = enough - above;
  }
  __syncthreads();
  threshold.above = shared.above;
  threshold.equal = shared.count;
  return shared.digit;
}

/// Finds a digit of kCount values when all threads have counted.
template <int kCount>
__device__ __forceinline__ int find_digit(ChooseShared& shared, Threshold& threshold, int turn, int wanted) {
  constexpr int kEach = kCount / kChooseThreads;
  __syncthreads();
  const int first = kCount - kEach * (static_cast<int>(threadIdx.x) + 1);
  int counts[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(shared.bins + first + i);
    counts[i] = static_cast<int>(four.x);
    counts[i + 1] = static_cast<int>(four.y);
    counts[i + 2] = static_cast<int>(four.z);
    counts[i + 3] = static_cast<int>(four.w);
  }
  return find_among(shared, threshold, counts, first, 0, turn, wanted);
}

/// The `wanted`-th largest of threshold.equal keys, up to kComparedKeys, above which threshold.above lie: by
/// comparing each with each. A warp has some of them, its lanes compare one with all. All threads call it,
/// behind a barrier.
__device__ __forceinline__ void compare_keys(ChooseShared& shared, const std::uint32_t* keys,
                                             Threshold& threshold, int wanted) {
  constexpr int kEach = kComparedKeys / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int count = threshold.equal, above = threshold.above;
  std::uint32_t others[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) others[i] = lane + i * 32 < count ? keys[lane + i * 32] : 0;
#pragma unroll 1
  for (int i = warp; i < count; i += kChooseWarps) {
    const std::uint32_t key = keys[i];
    std::uint32_t sums = 0;  // larger ones, and from bit 16 on equal ones
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (j * 32 >= count) break;
      if (others[j] > key) sums += 1;
      if (others[j] == key) sums += 0x10000;
    }
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
