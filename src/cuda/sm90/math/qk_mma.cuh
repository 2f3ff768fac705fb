// S = Q K^T for 64 query rows and a block of 64 tokens.
#pragma once

#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"

namespace flashlatent::sm90 {

/// s (+)= Q[:, chunk] K[:, chunk]^T, both in shared memory.
template <class Element, class Descriptors>
__device__ __forceinline__ void qk_chunk(float (&s)[32], const Descriptors& descriptors, const Tile& q,
                                         const Tile& k, bool accumulate) {
  const std::uint64_t a = descriptors.k_major(&q);
  const std::uint64_t b = descriptors.k_major(&k);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    ptx::Wgmma<Element, 64>::template ss<false>(s, a + step * ptx::kStepAlongRow,
                                                b + step * ptx::kStepAlongRow, accumulate || step > 0);
  }
}

}  // namespace flashlatent::sm90
