// The compiled shapes of the direct kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/common/dense_instance.h"

namespace flashlatent::direct {

using Instances = std::array<cuda::DenseInstance, 3>;  // of 8, 16 and 32 rows
using TeamInstances = std::array<cuda::DenseInstance, 1>;

/// Of kTeams: query rows a tile, CTAs a team.
inline constexpr int kTeamRows = 16, kTeamCtas = 8;

extern const Instances kInstances;
extern const Instances kMerging;
extern const TeamInstances kTeams;

}  // namespace flashlatent::direct
