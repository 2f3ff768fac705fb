// What is seesaw's own where a part is a share of one request (parts/shares.cuh).
#pragma once

#include "cuda/parts/shares.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/seesaw/config.h"

namespace flashlatent::seesaw {

/// How many of its blocks the computing warps load themselves, one a warpgroup.
inline constexpr int kFirstBlocks = 2;

/// No cluster has ragged queries.
template <class Config>
using Part = parts::Part<Config::kCluster == 1>;

/// When all that the other CTA of the cluster has to do here is done, and it has all that it takes from here.
/// All threads, once.
__device__ __forceinline__ void leave_cluster() {
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace flashlatent::seesaw
