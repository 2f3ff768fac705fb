// Shared memory of a CTA that chooses, and its place in the cluster that has a query token.
#pragma once

#include "cuda/sm90/kernels/index_topk/config.h"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/team_store.cuh"

namespace flashlatent::cuda::indexer {

/// Two CTAs of a multiprocessor.
inline constexpr int kSelectThreads = 512, kSelectWarps = kSelectThreads / 32;
/// Keys are compared digit by digit, from the uppermost on.
inline constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits, kLevels = 32 / kDigitBits;
/// Neighbours that a lane reads at once, and that a warp reads.
inline constexpr int kEachOfLane = 8, kEachOfWarp = kEachOfLane * 32;

/// A CTA's share of a query token: places [begin, begin + count), of which it keeps the upper halves of keys
/// if there are few enough.
struct SelectRange {
  int begin, count;

  FLASHLATENT_HOST_DEVICE bool held() const { return count <= kHeldKeys; }
  FLASHLATENT_HOST_DEVICE int units() const { return (count + kEachOfWarp - 1) / kEachOfWarp; }
};
FLASHLATENT_HOST_DEVICE SelectRange select_range(int places, int rank, int ctas) {
  const int units = (places + kEachOfWarp - 1) / kEachOfWarp, each = (units + ctas - 1) / ctas;
  const int begin = rank * each < units ? rank * each * kEachOfWarp : places;
  return {begin, places - begin < each * kEachOfWarp ? places - begin : each * kEachOfWarp};
}

/// Better than the threshold, and equal to it.
struct Counts {
  int better, ties;
};

struct SelectShared {
  union {
    std::uint16_t upper[kHeldKeys];
    uint4 upper_words[kHeldKeys / kEachOfLane];
  };
  union {
    /// A lane counts in a column of its own: no two lanes of a warp ever meet in a bank, whatever the keys.
    std::uint32_t columns[kDigits][32];
    int chosen[kMaxIndexTopk];  ///< Places, when nothing is counted any more.
  };
  /// Each CTA's counts of digits; alternately, since CTAs may be a level apart.
  std::uint32_t of_cta[2][kMostSelectTeam][kDigits];
  Counts counts[kMostSelectTeam];
  int better[kSelectWarps], ties[kSelectWarps];
};
static_assert(2 * (sizeof(SelectShared) + 1024) <= 228 * 1024);

/// The cluster of CTAs that have a query token.
template <bool kTeam>
struct SelectTeam {
  int rank = 0, ctas = 1;

  __device__ __forceinline__ SelectTeam() {
    if constexpr (kTeam) {
      rank = static_cast<int>(ptx::rank_in_cluster());
      ctas = static_cast<int>(ptx::ctas_of_cluster());
    }
  }
};

}  // namespace flashlatent::cuda::indexer
