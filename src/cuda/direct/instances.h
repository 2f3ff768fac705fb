// The compiled shapes of the direct kernel, as rows of data.
#pragma once

#include "cuda/common/dense_instance.h"
#include "cuda/direct/keys.h"

namespace flashlatent::direct {

using Instances = std::array<cuda::DenseInstance, kKeys.size()>;
using TeamInstances = std::array<cuda::DenseInstance, kTeamKeys.size()>;

extern const Instances kInstances;
extern const Instances kMerging;  // CTAs do the combine step, too
extern const TeamInstances kTeams;

}  // namespace flashlatent::direct
