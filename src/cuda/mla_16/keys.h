// What mla_16 is compiled for, as data.
#pragma once

#include "cuda/common/instance_key.h"

namespace flashlatent::mla_16 {

inline constexpr int kTileRows = 16;

inline constexpr auto kKeys576x512 = cuda::plain_keys(576, 512, kTileRows);
inline constexpr auto kKeys512x512 = cuda::plain_keys(512, 512, kTileRows);
inline constexpr auto kKeys320x256 = cuda::plain_keys(320, 256, kTileRows);

// Teams of 16 are compiled for 576/512 only. Where they are picked they take some 9 % less time than teams of
// 8 (6 requests of 8,192 tokens); each further shape would add 15 s to a build.
inline constexpr auto kKeysOf4x576x512 = cuda::plain_keys(576, 512, kTileRows, 4);
inline constexpr auto kKeysOf8x576x512 = cuda::plain_keys(576, 512, kTileRows, 8);
inline constexpr auto kKeysOf16x576x512 = cuda::plain_keys(576, 512, kTileRows, 16);
inline constexpr auto kKeysOf4x512x512 = cuda::plain_keys(512, 512, kTileRows, 4);
inline constexpr auto kKeysOf8x512x512 = cuda::plain_keys(512, 512, kTileRows, 8);
inline constexpr auto kKeysOf4x320x256 = cuda::plain_keys(320, 256, kTileRows, 4);
inline constexpr auto kKeysOf8x320x256 = cuda::plain_keys(320, 256, kTileRows, 8);

/// The key of sparse prefill.
constexpr cuda::InstanceKey turns_key(Dtype dtype, int qk_dim) {
  return {dtype, qk_dim, 512, kTileRows, cuda::Loading::kTokens, 1, 1, true};
}
inline constexpr std::array kTurnsKeys = {turns_key(Dtype::kBF16, 576), turns_key(Dtype::kF16, 576),
                                          turns_key(Dtype::kBF16, 512), turns_key(Dtype::kF16, 512)};

}  // namespace flashlatent::mla_16
