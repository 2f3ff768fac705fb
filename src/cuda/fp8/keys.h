// What the kernels that take an fp8_656 cache's bytes straight to the tensor cores are compiled for, as data.
#pragma once

#include "core/fp8_656.h"
#include "cuda/common/instance_key.h"

namespace flashlatent::fp8 {

/// Of teams: query rows a tile, CTAs a team.
inline constexpr int kTeamRows = 16, kTeamCtas = 8;

constexpr cuda::InstanceKey key(int tile_rows, int team = 1) {
  return {Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, tile_rows, cuda::Loading::kFp8, 1, team};
}
/// Few rows: each with and without the combine step.
inline constexpr std::array kFewRowsKeys = {key(8), key(16), key(32)};
inline constexpr std::array kTeamKeys = {key(kTeamRows, kTeamCtas)};
inline constexpr std::array kRows64Keys = {key(64)};

}  // namespace flashlatent::fp8
