// The compiled shapes of the seesaw kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/common/dense_instance.h"

namespace flashlatent::seesaw {

using ShapeInstances = std::array<cuda::DenseInstance, 4>;  // two dtypes, by boxes and by tokens

using TeamInstances = std::array<cuda::DenseInstance, 6>;  // two dtypes, three sizes

using Fp8Instances = std::array<cuda::DenseInstance, 2>;  // alone, and as a cluster

using Fp8ShareInstances = std::array<cuda::DenseInstance, 1>;  // as a cluster

// As files take about as long to compile.
extern const ShapeInstances kInstances576x512;
extern const ShapeInstances kInstances512x512;
extern const ShapeInstances kInstances320x256;
extern const Fp8Instances kInstancesFp8_656;
extern const TeamInstances kTeams576x512;
extern const ShapeInstances kShares576x512;
extern const Fp8ShareInstances kSharesFp8_656;

}  // namespace flashlatent::seesaw
