// What the roles of a team's CTA can know before the launch before theirs is done.
#pragma once

#include "cuda/parts/segments.cuh"

namespace flashlatent::parts {

/// Has a part one segment, that can be known before the launch before this one is done?
template <int kTeam>
__device__ __forceinline__ bool known_ahead(const DecodeArguments& args) {
  return PartPlace<kTeam>::by_shape(args.geometry) && args.query.begins == nullptr;
}

__device__ __forceinline__ void wait_for_launch_before() {
  cudaGridDependencySynchronize();            // of what it may still write
  cudaTriggerProgrammaticLaunchCompletion();  // the combine step may take its place in the queue
}

}  // namespace flashlatent::parts
