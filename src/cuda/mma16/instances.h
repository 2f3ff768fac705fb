// The compiled shapes of the 16-row kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/common/dense_instance.h"

namespace flashlatent::mma16 {

inline constexpr int kTileRows = 16;

using Instances = std::array<cuda::DenseInstance, 4>;  // two dtypes, two loaders

extern const Instances kInstances576x512;
extern const Instances kInstances512x512;
extern const Instances kInstances320x256;

// Teams of a shape in one file, so that files compile side by side. Those of 16 take some 9 % less than
// those of 8 where they are picked (6 requests of 8,192 tokens); of other shapes they would be 15 s of a
// build.
extern const Instances kTeamsOf4x576x512, kTeamsOf8x576x512, kTeamsOf16x576x512;
extern const Instances kTeamsOf4x512x512, kTeamsOf8x512x512;
extern const Instances kTeamsOf4x320x256, kTeamsOf8x320x256;

}  // namespace flashlatent::mma16
