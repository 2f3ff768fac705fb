// The compiled instances of mla_16, as rows of data.
#pragma once

#include "cuda/common/dense_instance.h"
#include "cuda/mla_16/keys.h"

namespace flashlatent::mla_16 {

using Instances = std::array<cuda::DenseInstance, kKeys576x512.size()>;

extern const Instances kInstances576x512;
extern const Instances kInstances512x512;
extern const Instances kInstances320x256;

// The teams of each shape are a file of their own, so that files compile side by side.
extern const Instances kTeamsOf4x576x512, kTeamsOf8x576x512, kTeamsOf16x576x512;
extern const Instances kTeamsOf4x512x512, kTeamsOf8x512x512;
extern const Instances kTeamsOf4x320x256, kTeamsOf8x320x256;

extern const std::array<cuda::DenseInstance, kTurnsKeys.size()> kTurns;  // sparse prefill

}  // namespace flashlatent::mla_16
