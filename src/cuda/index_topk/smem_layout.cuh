// Shared memory of a scoring CTA. Sizes depend on the group, so places are computed once.
#pragma once

#include "cuda/index_topk/config.h"
#include "cuda/ptx/barrier.cuh"

namespace flashlatent::cuda::indexer {

/// What does not depend on the group.
struct Fixed {
  ptx::Barrier full[kStages], empty[kStages];
  std::uint32_t exists[kStages][kTile / 32];  ///< A bit a key.
  std::uint32_t scales[kStages][kTile];       ///< fp32, or 4 x ue8m0.
  int seen[kMostGroupRows];                   ///< What each query token sees.
  int room[kThreads + 4];
};

template <int kKeyBytes, bool kFp4Query>
struct Layout {
  /// From the begin, which is aligned to 1,024 bytes: queries (tiles of head_columns rows of 128 bytes),
  /// keys, Fixed, weights, factors of queries.
  int keys, fixed, weights, factors, bytes;

  FLASHLATENT_FP8_FUNCTION explicit Layout(const Shape& shape) {
    const int heads = shape.group_rows * shape.heads();
    keys = heads * index_keys::kDim;
    fixed = keys + kStages * kTile * kKeyBytes;
    weights = fixed + static_cast<int>(sizeof(Fixed));
    factors = weights + heads * 4;
    bytes = factors + (kFp4Query ? heads * 4 * index_keys::kGroups : 0);
  }
};
// The largest groups, two CTAs a multiprocessor.
static_assert(kMostGroupRows * 64 * (128 + 4) + kStages * kTile * 128 + sizeof(Fixed) + 1024 <
              2 * kMostShared);

}  // namespace flashlatent::cuda::indexer
