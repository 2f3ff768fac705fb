// The scale of an e4m3 cache, one number. Scores and outputs are multiplied by it: an element times a scale
// that is no power of two would be rounded.
#pragma once

#include "cuda/sm90/walk/arguments.h"

namespace flashlatent::sm90 {

/// Does this loader leave the scale to scores and outputs? (kLeavesScale)
template <class Loader>
inline constexpr bool kLeavesCacheScale = requires {
  requires Loader::kLeavesScale;
};

/// The factor of scores and outputs: 1 without a scale, and with loaders that apply it.
template <class Loader>
__device__ __forceinline__ float cache_scale(const CacheArguments& cache) {
  if constexpr (kLeavesCacheScale<Loader>) {
    if (cache.scale != nullptr) return __ldg(cache.scale);
  }
  return 1.0F;
}

}  // namespace flashlatent::sm90
