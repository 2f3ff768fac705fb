// The compiled shapes, as rows of data.
#pragma once

#include "cuda/common/dense_instance.h"
#include "cuda/fp8/keys.h"

namespace flashlatent::fp8 {

using FewRowsInstances = std::array<cuda::DenseInstance, kFewRowsKeys.size()>;
using TeamInstances = std::array<cuda::DenseInstance, kTeamKeys.size()>;
using Rows64Instances = std::array<cuda::DenseInstance, kRows64Keys.size()>;

extern const FewRowsInstances kFewRows;
extern const FewRowsInstances kMergingFewRows;  // CTAs do the combine step, too
extern const TeamInstances kTeams;
extern const Rows64Instances kRows64;

}  // namespace flashlatent::fp8
