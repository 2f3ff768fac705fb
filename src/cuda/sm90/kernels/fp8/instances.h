// The compiled shapes, as rows of data.
#pragma once

#include "cuda/host/dense_instance.h"
#include "cuda/sm90/kernels/fp8/keys.h"

namespace flashlatent::fp8 {

using FewRowsInstances = std::array<cuda::DenseInstance, kFewRowsKeys.size()>;
using TeamInstances = std::array<cuda::DenseInstance, kTeamKeys.size()>;
using FewRowsE4m3Instances = std::array<cuda::DenseInstance, kFewRowsE4m3Keys.size()>;
using E4m3TeamInstances = std::array<cuda::DenseInstance, kE4m3TeamKeys.size()>;
using FewRows584Instances = std::array<cuda::DenseInstance, kFewRows584Keys.size()>;
using RecordsInstances = std::array<cuda::DenseInstance, kRecordsKeys.size()>;
using Rows64Instances = std::array<cuda::DenseInstance, kRows64Keys.size()>;
using EdgesInstances = std::array<cuda::DenseInstance, kEdgesKeys.size()>;
using TurnsInstances = std::array<cuda::DenseInstance, kTurnsKeys.size()>;

extern const FewRowsInstances kFewRows;
extern const FewRowsInstances kMergingFewRows;  // CTAs run the combine step, too
extern const TeamInstances kTeams;
extern const FewRowsE4m3Instances kFewRowsE4m3;
extern const FewRowsE4m3Instances kMergingFewRowsE4m3;
extern const E4m3TeamInstances kE4m3Teams;
extern const FewRows584Instances kFewRows584;
extern const FewRows584Instances kMergingFewRows584;
extern const FewRows584Instances kAlone584;
extern const RecordsInstances kRecords;
extern const Rows64Instances kRows64Instances;
extern const EdgesInstances kEdges;
extern const TurnsInstances kTurns;

}  // namespace flashlatent::fp8
