// A segment's tokens and stages, as mla_64_roles's roles count them.
#pragma once

#include "cuda/mla_64_roles/smem_layout.cuh"

namespace flashlatent::mla_64_roles {

/// The same in all lanes, and known to be: ptxas then keeps in uniform registers what depends on it.
__device__ __forceinline__ int uniform(int x) {
  return __shfl_sync(0xffffffff, x, 0);
}

/// Of a segment, the tokens that there are.
__device__ __forceinline__ int first_token(const schedule::Segment& segment) {
  return segment.block_begin * 64;
}
__device__ __forceinline__ int last_token(const schedule::Segment& segment) {
  return min(segment.block_end * 64, segment.length);
}
/// How many stages they are.
__device__ __forceinline__ int stages_of(const schedule::Segment& segment) {
  return (last_token(segment) - first_token(segment) + kStageTokens - 1) / kStageTokens;
}

}  // namespace flashlatent::mla_64_roles
