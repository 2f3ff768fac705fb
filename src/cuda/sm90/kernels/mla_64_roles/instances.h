// The compiled instances of mla_64_roles, as rows of data.
#pragma once

#include "cuda/host/dense_instance.h"
#include "cuda/sm90/kernels/mla_64_roles/keys.h"

namespace flashlatent::mla_64_roles {

using Instances = std::array<cuda::DenseInstance, kKeys.size()>;

extern const Instances kInstances;
extern const Instances kShares;                                          // a CTA has a share of one request
extern const std::array<cuda::DenseInstance, kTurnsKeys.size()> kTurns;  // sparse prefill

}  // namespace flashlatent::mla_64_roles
