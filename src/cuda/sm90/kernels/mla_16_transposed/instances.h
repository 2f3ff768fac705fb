// The compiled shapes of the transposed kernel, as rows of data.
#pragma once

#include "cuda/host/dense_instance.h"
#include "cuda/sm90/kernels/mla_16_transposed/keys.h"

namespace flashlatent::mla_16_transposed {

using Instances = std::array<cuda::DenseInstance, kLowKeys.size()>;
using Fp8Instances = std::array<cuda::DenseInstance, kFp8Keys.size()>;
using E4m3Instances = std::array<cuda::DenseInstance, kE4m3Keys.size()>;

extern const Instances kLowInstances;
extern const Fp8Instances kInstancesFp8_656;
extern const Fp8Instances kInstancesRopeRecords;
extern const Fp8Instances kInstancesListed;
extern const Fp8Instances kInstancesRecords;
extern const E4m3Instances kInstancesE4m3;

extern const std::array<cuda::DenseInstance, kShareKeys.size()> kShares;
extern const std::array<cuda::DenseInstance, kTurnsKeys.size()> kTurns;  // sparse prefill
extern const std::array<cuda::DenseInstance, kTurnsE4m3Keys.size()> kTurnsE4m3;
extern const Fp8Instances kTurnsRecords;

}  // namespace flashlatent::mla_16_transposed
