// What the trio kernel is compiled for, as data.
#pragma once

#include "cuda/common/instance_key.h"

namespace flashlatent::trio {

inline constexpr int kTileRows = 64;

/// Pages that come by boxes are a multiple of so many tokens.
inline constexpr int kPageTokens = 32;

/// Two dtypes.
constexpr std::array<cuda::InstanceKey, 2> keys(cuda::Loading loading, bool turns = false) {
  return {{{Dtype::kBF16, 576, 512, kTileRows, loading, 1, 1, turns},
           {Dtype::kF16, 576, 512, kTileRows, loading, 1, 1, turns}}};
}
/// Each also where a CTA has a share of one request.
inline constexpr auto kKeys = keys(cuda::Loading::kBoxes), kKeysByTokens = keys(cuda::Loading::kTokens);
/// Of sparse prefill.
inline constexpr auto kTurnsKeys = keys(cuda::Loading::kTokens, true);

}  // namespace flashlatent::trio
