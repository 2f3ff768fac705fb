// Shared memory of a scoring CTA. Sizes depend on the group, so places are computed once.
#pragma once

#include "cuda/sm90/kernels/index_topk/config.h"
#include "cuda/sm90/ptx/barrier.cuh"

namespace flashlatent::cuda::indexer {

/// What does not depend on the group.
template <class Config>
struct Fixed {
  ptx::Barrier full[Config::kMostStages], empty[Config::kMostStages];
  std::uint32_t exists[Config::kMostStages][Config::kTile / 32];         ///< A bit a key.
  alignas(16) std::uint32_t scales[Config::kMostStages][Config::kTile];  ///< fp32, or 4 x ue8m0.
  int seen[Config::kMostGroupRows];   ///< How many keys each query token sees.
  int apart[Config::kMostGroupRows];  ///< e2m1 queries: does it have scales that are too far apart?
  int room[Config::kThreads / 32 + 3];
};

template <class Config, IndexFormat kFormat, bool kFp4Query>
struct Layout {
  static constexpr int kRing = Config::stages(kFormat) * Config::kTile * index_keys::data_bytes(kFormat);

  /// Offsets from the begin, which is aligned to 1,024 bytes: queries (tiles of head_columns rows of 128
  /// bytes), keys, Fixed, weights, factors of queries.
  int keys, fixed, weights, factors, bytes;

  FLASHLATENT_HOST_DEVICE explicit constexpr Layout(const Shape& shape) {
    const int heads = shape.group_rows * shape.heads();
    keys = heads * index_keys::kDim;
    fixed = keys + kRing;
    weights = fixed + static_cast<int>(sizeof(Fixed<Config>));
    factors = weights + (heads + shape.head_columns) * 4;  // products come in pairs, and read weights as such
    bytes = factors + (kFp4Query ? heads * 4 * index_keys::kGroups : 0);
  }
};

/// The largest groups: 64 heads each, or half as many of 128.
template <class Config>
constexpr bool fits_shared_memory() {
  const Shape most = {64, 1, Config::kMostGroupRows, Config::kWarpgroups};
  const Shape heads = {64, 2, std::max(1, Config::kMostGroupRows / 2), Config::kWarpgroups};
  return Layout<Config, IndexFormat::kFp8_132, true>(most).bytes <= Config::kMostShared &&
         Layout<Config, IndexFormat::kFp8_132, true>(heads).bytes <= Config::kMostShared &&
         Layout<Config, IndexFormat::kMxfp4_68, true>(most).bytes <= Config::kMostShared;
}
static_assert(fits_shared_memory<ScoreConfig<2>>() && fits_shared_memory<ScoreConfig<4>>());

}  // namespace flashlatent::cuda::indexer
