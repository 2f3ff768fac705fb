// Stores to other CTAs' shared memory that a barrier there counts.
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

/// `address` and `barrier`: of one CTA, from address_in(). Completes 4 bytes of what the barrier expects.
__device__ __forceinline__ void store_async(std::uint32_t address, std::uint32_t value,
                                            std::uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(address),
               "r"(value), "r"(barrier)
               : "memory");
}

}  // namespace flashlatent::ptx
