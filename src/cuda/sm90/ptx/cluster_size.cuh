// The size of a cluster.
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

__device__ __forceinline__ std::uint32_t ctas_of_cluster() {
  std::uint32_t ctas;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ctas));
  return ctas;
}

}  // namespace flashlatent::ptx
