// S = Q K^T for 64 query rows and a block of 64 tokens.
#pragma once

#include "cuda/parts/tile.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace flashlatent::parts {

/// s (+)= Q[:, chunk] K[:, chunk]^T, both in shared memory.
template <class Element>
__device__ __forceinline__ void qk_chunk(float (&s)[32], const Tile& q, const Tile& k, bool accumulate) {
  const std::uint64_t a = ptx::descriptor_k_major(ptx::shared_address(&q));
  const std::uint64_t b = ptx::descriptor_k_major(ptx::shared_address(&k));
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    ptx::Wgmma<Element, 64>::template ss<false>(s, a + step * ptx::kStepAlongRow,
                                                b + step * ptx::kStepAlongRow, accumulate || step > 0);
  }
}

/// The same with Q's chunk in registers.
template <class Element>
__device__ __forceinline__ void qk_chunk(float (&s)[32], const std::uint32_t (&q)[4][4], const Tile& k,
                                         bool accumulate) {
  const std::uint64_t b = ptx::descriptor_k_major(ptx::shared_address(&k));
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    ptx::Wgmma<Element, 64>::template rs<false>(s, q[step], b + step * ptx::kStepAlongRow,
                                                accumulate || step > 0);
  }
}

}  // namespace flashlatent::parts
