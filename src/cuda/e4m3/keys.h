// What the kernel with e4m3 products is compiled for, as data.
#pragma once

#include "core/e4m3_latent.h"
#include "cuda/common/instance_key.h"

namespace flashlatent::mla_e4m3 {

/// Query rows a tile.
inline constexpr int kFewRows = 16, kTileRows = 64;

/// Chains of products in which a score is added up. Tensor cores keep 13 bits of a chain's sum, and chains
/// are added in fp32 (docs/log/mla_64_e4m3.md): with three the lse is within the tolerance. Few rows have
/// registers for two under way, so that more of them cost nothing.
constexpr int score_chains(int tile_rows) {
  return tile_rows <= kFewRows ? 5 : 3;
}

/// Pages that come by boxes are a multiple of so many tokens.
inline constexpr int kPageTokens = 16;

constexpr cuda::InstanceKey key(int qk_dim, int tile_rows, cuda::Loading loading) {
  return {Dtype::kU8, qk_dim, e4m3_latent::kLatentDim, tile_rows, loading};
}
/// Each by boxes, token by token, and so by two lists.
constexpr std::array<cuda::InstanceKey, 6> keys(int qk_dim) {
  return {{key(qk_dim, kFewRows, cuda::Loading::kBoxes), key(qk_dim, kFewRows, cuda::Loading::kTokens),
           key(qk_dim, kFewRows, cuda::Loading::kListedFp8), key(qk_dim, kTileRows, cuda::Loading::kBoxes),
           key(qk_dim, kTileRows, cuda::Loading::kTokens),
           key(qk_dim, kTileRows, cuda::Loading::kListedFp8)}};
}
inline constexpr auto kKeys = keys(e4m3_latent::kDim), kKeysWithoutRope = keys(e4m3_latent::kLatentDim);

}  // namespace flashlatent::mla_e4m3
