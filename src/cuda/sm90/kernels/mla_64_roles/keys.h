// What mla_64_roles is compiled for, as data.
#pragma once

#include "cuda/host/instance_key.h"

namespace flashlatent::mla_64_roles {

inline constexpr int kTileRows = 64;

/// Pages that are loaded by boxes are a multiple of this many tokens.
inline constexpr int kPageTokens = 32;

/// Each also where a CTA has a share of one request.
inline constexpr auto kKeys = cuda::plain_keys(576, 512, kTileRows);
/// The key of an instance for sparse prefill.
constexpr cuda::InstanceKey turns_key(Dtype dtype, int qk_dim) {
  return {dtype, qk_dim, 512, kTileRows, cuda::Loading::kTokens, 1, 1, true};
}
inline constexpr std::array kTurnsKeys = {turns_key(Dtype::kBF16, 576), turns_key(Dtype::kF16, 576),
                                          turns_key(Dtype::kBF16, 512), turns_key(Dtype::kF16, 512)};

}  // namespace flashlatent::mla_64_roles
