// Reductions in memory of other CTAs.
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

/// *place = min(*place, value); `place` is in the cluster's shared memory, see address_in().
__device__ __forceinline__ void min_in_cluster(std::uint32_t place, unsigned long long value) {
  asm volatile("red.relaxed.cluster.shared::cluster.min.u64 [%0], %1;" ::"r"(place), "l"(value) : "memory");
}

}  // namespace flashlatent::ptx
