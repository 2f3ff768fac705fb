// The compiled shapes of the trio kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/dense/dense.h"

namespace flashlatent::trio {

using Instances = std::array<cuda::DenseInstance, 2>;  // two dtypes

// One file each, so that they compile side by side.
extern const Instances kInstances;
extern const Instances kMerging;
extern const Instances kEven;
extern const Instances kByLength;

}  // namespace flashlatent::trio
