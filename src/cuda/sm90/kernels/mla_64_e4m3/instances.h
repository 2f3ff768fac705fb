// The compiled shapes of the kernel with e4m3 products, as rows of data.
#pragma once

#include "cuda/host/dense_instance.h"
#include "cuda/sm90/kernels/mla_64_e4m3/keys.h"

namespace flashlatent::mla_64_e4m3 {

using Instances = std::array<cuda::DenseInstance, kKeys.size()>;
using TurnsInstances = std::array<cuda::DenseInstance, kTurnsKeys.size()>;

extern const Instances kInstances;
extern const TurnsInstances kTurnsInstances;

}  // namespace flashlatent::mla_64_e4m3
