// The compiled shapes of the transposed kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/dense/instance.h"

namespace flashlatent::etap {

using ShapeInstances = std::array<cuda::DenseInstance, 4>;  // two dtypes, two loaders

using Fp8Instances = std::array<cuda::DenseInstance, 1>;

extern const ShapeInstances kInstances576x512;
extern const ShapeInstances kInstances512x512;
extern const ShapeInstances kInstances320x256;
extern const ShapeInstances kLowInstances576x512;  // of 8 rows, not 16
// In a file of its own: beside it ptxas gives the others' registers out otherwise.
extern const Fp8Instances kInstancesFp8_656;

}  // namespace flashlatent::etap
