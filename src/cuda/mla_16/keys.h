// What the 16-row kernel is compiled for, as data.
#pragma once

#include "cuda/common/instance_key.h"

namespace flashlatent::mla_16 {

inline constexpr int kTileRows = 16;

/// Of a CTA alone, or of a team of so many.
constexpr auto keys(int qk_dim, int v_dim, int team = 1) {
  return cuda::plain_keys(qk_dim, v_dim, kTileRows, team);
}
inline constexpr auto kKeys = cuda::joined(keys(576, 512), keys(512, 512), keys(320, 256));
// Those of 16 take some 9 % less than those of 8 where they are picked (6 requests of 8,192 tokens); of other
// shapes they would be 15 s of a build.
inline constexpr auto kTeamKeys =
    cuda::joined(keys(576, 512, 4), keys(576, 512, 8), keys(576, 512, 16), keys(512, 512, 4),
                 keys(512, 512, 8), keys(320, 256, 4), keys(320, 256, 8));

/// Of sparse prefill.
constexpr cuda::InstanceKey turns_key(Dtype dtype, int qk_dim) {
  return {dtype, qk_dim, 512, kTileRows, cuda::Loading::kTokens, 1, 1, true};
}
inline constexpr std::array kTurnsKeys = {turns_key(Dtype::kBF16, 576), turns_key(Dtype::kF16, 576),
                                          turns_key(Dtype::kBF16, 512), turns_key(Dtype::kF16, 512)};

}  // namespace flashlatent::mla_16
