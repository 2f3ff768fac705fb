// What the direct kernel is compiled for, as data.
#pragma once

#include "core/fp8_656.h"
#include "cuda/common/instance_key.h"

namespace flashlatent::direct {

/// Of teams: query rows a tile, CTAs a team.
inline constexpr int kTeamRows = 16, kTeamCtas = 8;

constexpr cuda::InstanceKey key(int tile_rows, int team = 1) {
  return {Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, tile_rows, cuda::Loading::kFp8, 1, team};
}
/// Each with and without the combine step.
inline constexpr std::array kKeys = {key(8), key(16), key(32)};
inline constexpr std::array kTeamKeys = {key(kTeamRows, kTeamCtas)};

}  // namespace flashlatent::direct
