// The compiled shapes of the direct kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/dense/dense.h"

namespace flashlatent::direct {

using Instances = std::array<cuda::DenseInstance, 1>;

extern const Instances kInstances;

}  // namespace flashlatent::direct
