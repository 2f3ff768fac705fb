// The compiled shapes of the quartet kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/dense/dense.h"

namespace flashlatent::quartet {

using Instances = std::array<cuda::DenseInstance, 1>;

// One file each, so that they compile side by side.
extern const Instances kInstances, kMerging;

}  // namespace flashlatent::quartet
