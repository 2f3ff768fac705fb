// The compiled shapes of the quartet kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/common/dense_instance.h"

namespace flashlatent::quartet {

using Instances = std::array<cuda::DenseInstance, 1>;

extern const Instances kInstances;

}  // namespace flashlatent::quartet
