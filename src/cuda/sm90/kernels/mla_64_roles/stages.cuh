// The tokens and stages of a segment, as all roles count them.
#pragma once

#include "cuda/sm90/kernels/mla_64_roles/smem_layout.cuh"

namespace flashlatent::mla_64_roles {

/// Returns lane 0's x, so that ptxas knows all lanes to be equal and uses uniform registers.
__device__ __forceinline__ int uniform(int x) {
  return __shfl_sync(0xffffffff, x, 0);
}

/// The segment's first token, within the request.
__device__ __forceinline__ int first_token(const schedule::Segment& segment) {
  return segment.block_begin * 64;
}
__device__ __forceinline__ int last_token(const schedule::Segment& segment) {
  return min(segment.block_end * 64, segment.length);
}
/// The number of stages of a segment.
__device__ __forceinline__ int stages_of(const schedule::Segment& segment) {
  return (last_token(segment) - first_token(segment) + kStageTokens - 1) / kStageTokens;
}

}  // namespace flashlatent::mla_64_roles
