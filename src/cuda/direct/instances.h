// The compiled shapes of the direct kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/dense/dense.h"

namespace flashlatent::direct {

using Instances = std::array<cuda::DenseInstance, 1>;

// One file each, so that they compile side by side.
extern const Instances kInstances;
extern const Instances kMerging;
extern const Instances kTeams;  // of 8

}  // namespace flashlatent::direct
