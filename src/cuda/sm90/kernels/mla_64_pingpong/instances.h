// The compiled shapes of the mla_64_pingpong kernel, as rows of data.
#pragma once

#include "cuda/host/dense_instance.h"
#include "cuda/sm90/kernels/mla_64_pingpong/keys.h"

namespace flashlatent::mla_64_pingpong {

using ShapeInstances = std::array<cuda::DenseInstance, kKeys576x512.size()>;
using TeamInstances = std::array<cuda::DenseInstance, kTeamKeys576x512.size()>;
using Fp8Instances = std::array<cuda::DenseInstance, kFp8Keys.size()>;
using ListedInstances = std::array<cuda::DenseInstance, kListedKeys.size()>;
using Fp8ShareInstances = std::array<cuda::DenseInstance, kFp8ShareKeys.size()>;
using E4m3Instances = std::array<cuda::DenseInstance, kE4m3Keys.size()>;

extern const ShapeInstances kInstances576x512;
extern const ShapeInstances kInstances512x512;
extern const ShapeInstances kInstances320x256;
extern const Fp8Instances kInstancesFp8_656;
extern const Fp8Instances kInstancesRopeRecords;
extern const Fp8Instances kInstancesRecords;
extern const E4m3Instances kInstancesE4m3;
extern const ListedInstances kInstancesListed;
extern const TeamInstances kTeams576x512;
extern const std::array<cuda::DenseInstance, kAnyTeamKeys.size()> kAnyTeams;
extern const std::array<cuda::DenseInstance, kEdgesTeamKeys.size()> kEdgesTeams;
extern const ShapeInstances kShares576x512;
extern const Fp8ShareInstances kSharesFp8_656;
extern const Fp8Instances kSharesRopeRecords;
extern const Fp8Instances kSharesRecords;
extern const ListedInstances kSharesListed;
// For sparse prefill:
extern const std::array<cuda::DenseInstance, kTurnsKeys.size()> kTurns;
extern const std::array<cuda::DenseInstance, kTurnsFp8Keys.size()> kTurnsFp8;
extern const std::array<cuda::DenseInstance, kTurnsListedKeys.size()> kTurnsListed;
extern const std::array<cuda::DenseInstance, kTurnsListed576Keys.size()> kTurnsListed576;
extern const std::array<cuda::DenseInstance, kTurnsE4m3Keys.size()> kTurnsE4m3;
extern const Fp8Instances kTurnsRecords;

}  // namespace flashlatent::mla_64_pingpong
