// The compiled shapes of the transposed kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/common/dense_instance.h"

namespace flashlatent::etap {

using Instances = std::array<cuda::DenseInstance, 4>;  // two dtypes, two loaders

using Fp8Instances = std::array<cuda::DenseInstance, 1>;

// Of other dimensions all but batch_invariant calls were mma16's anyway, and these would be some 15 s of a
// build.
extern const Instances kInstances;
extern const Instances kLowInstances;  // of 8 rows, not 16
// In a file of its own: beside it ptxas gives the others' registers out otherwise.
extern const Fp8Instances kInstancesFp8_656;

}  // namespace flashlatent::etap
