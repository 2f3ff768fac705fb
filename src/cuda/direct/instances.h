// The compiled shapes of the direct kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/dense/dense.h"

namespace flashlatent::direct {

using Instances = std::array<cuda::DenseInstance, 1>;

// One file each, so that they compile side by side.
extern const Instances kInstances8, kMerging8;    // of 8 rows
extern const Instances kInstances, kMerging;      // of 16 rows
extern const Instances kInstances32, kMerging32;  // of 32 rows
extern const Instances kTeams;                    // of 8

}  // namespace flashlatent::direct
