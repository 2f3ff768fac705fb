// The compiled shapes of the 16-row kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/dense/instance.h"

namespace flashlatent::mma16 {

inline constexpr int kTileRows = 16;

using ShapeInstances = std::array<cuda::DenseInstance, 4>;  // two dtypes, two loaders

using TeamInstances = std::array<cuda::DenseInstance, 12>;  // two dtypes, three sizes of teams, two loaders

// Teams in one file each, so that they compile side by side.
extern const ShapeInstances kInstances576x512;
extern const ShapeInstances kInstances512x512;
extern const ShapeInstances kInstances320x256;
extern const TeamInstances kTeams576x512;
extern const TeamInstances kTeams512x512;
extern const TeamInstances kTeams320x256;

}  // namespace flashlatent::mma16
