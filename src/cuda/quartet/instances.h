// The compiled shapes of the quartet kernel, as rows of data.
#pragma once

#include "cuda/common/dense_instance.h"
#include "cuda/quartet/keys.h"

namespace flashlatent::quartet {

using Instances = std::array<cuda::DenseInstance, kKeys.size()>;

extern const Instances kInstances;

}  // namespace flashlatent::quartet
