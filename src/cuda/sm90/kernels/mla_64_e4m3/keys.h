// What the kernel with e4m3 products is compiled for, as data.
#pragma once

#include "core/formats/e4m3_latent.h"
#include "cuda/host/instance_key.h"

namespace flashlatent::mla_64_e4m3 {

/// Query rows a tile.
inline constexpr int kFewRows = e4m3_latent::kFewRows, kTileRows = 64;

/// Pages that are loaded by boxes are a multiple of so many tokens.
inline constexpr int kPageTokens = 16;

constexpr cuda::InstanceKey key(int qk_dim, int tile_rows, cuda::Loading loading) {
  return {Dtype::kU8, qk_dim, e4m3_latent::kLatentDim, tile_rows, loading};
}
/// Each by boxes, token by token, and token by token from two lists.
constexpr std::array<cuda::InstanceKey, 6> keys(int qk_dim) {
  return {{key(qk_dim, kFewRows, cuda::Loading::kBoxes), key(qk_dim, kFewRows, cuda::Loading::kTokens),
           key(qk_dim, kFewRows, cuda::Loading::kListedFp8), key(qk_dim, kTileRows, cuda::Loading::kBoxes),
           key(qk_dim, kTileRows, cuda::Loading::kTokens),
           key(qk_dim, kTileRows, cuda::Loading::kListedFp8)}};
}
inline constexpr auto kKeys = cuda::joined(keys(e4m3_latent::kDim), keys(e4m3_latent::kLatentDim));
/// Sparse prefill, token by token.
constexpr std::array<cuda::InstanceKey, 2> turns_keys(int qk_dim) {
  return {{cuda::in_turn(key(qk_dim, kFewRows, cuda::Loading::kTokens)),
           cuda::in_turn(key(qk_dim, kTileRows, cuda::Loading::kTokens))}};
}
inline constexpr auto kTurnsKeys =
    cuda::joined(turns_keys(e4m3_latent::kDim), turns_keys(e4m3_latent::kLatentDim));

}  // namespace flashlatent::mla_64_e4m3
