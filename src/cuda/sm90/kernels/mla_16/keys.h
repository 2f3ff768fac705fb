// What mla_16 is compiled for, as data.
#pragma once

#include "cuda/host/instance_key.h"

namespace flashlatent::mla_16 {

inline constexpr int kTileRows = 16;

/// The keys of instances for a CTA alone, or for a team of so many.
constexpr auto keys(int qk_dim, int v_dim, int team = 1) {
  return cuda::plain_keys(qk_dim, v_dim, kTileRows, team);
}
inline constexpr auto kKeys = cuda::joined(keys(576, 512), keys(512, 512), keys(320, 256));
// Teams of 16 are compiled for 576/512 only. Where they are picked they take some 9 % less time than teams of
// 8 (6 requests of 8,192 tokens); each further shape would add 4 s to a build.
inline constexpr auto kTeamKeys =
    cuda::joined(keys(576, 512, 4), keys(576, 512, 8), keys(576, 512, 16), keys(512, 512, 4),
                 keys(512, 512, 8), keys(320, 256, 4), keys(320, 256, 8));

/// The key of sparse prefill.
constexpr cuda::InstanceKey turns_key(Dtype dtype, int qk_dim) {
  return {dtype, qk_dim, 512, kTileRows, cuda::Loading::kTokens, 1, 1, true};
}
inline constexpr std::array kTurnsKeys = {turns_key(Dtype::kBF16, 576), turns_key(Dtype::kF16, 576),
                                          turns_key(Dtype::kBF16, 512), turns_key(Dtype::kF16, 512)};

}  // namespace flashlatent::mla_16
