// 16 bytes that a GPU writes atomically to another GPU's memory: scalar .b128 accesses, at scope .sys since
// PTX 8.4. PTX models a vector access such as .v4.b32 as one access for each element, in any order; a .b128
// access is what cuda::atomic_ref of 16 bytes loads and stores (libcu++, sm_70 and newer). Between GPUs both
// need native atomics on each other's memory, which GPUs joined by NVLink have.
#pragma once

#include <cstdint>
#include <cstdio>

#include "cuda/sm90/ptx/word128.cuh"

namespace flashlatent::ptx {

/// A store for threads of any GPU to read; orders nothing else.
__device__ __forceinline__ void store_at_system(Word128* global, Word128 x) {
  asm volatile(
      "{\n.reg .b128 x;\nmov.b128 x, {%1, %2};\nst.relaxed.sys.global.b128 [%0], x;\n}" ::"l"(global),
      "l"(x.low), "l"(x.high)
      : "memory");
}

/// A load of the present value.
__device__ __forceinline__ Word128 load_at_system(const Word128* global) {
  Word128 x;
  asm volatile("{\n.reg .b128 x;\nld.relaxed.sys.global.b128 x, [%2];\nmov.b128 {%0, %1}, x;\n}"
               : "=l"(x.low), "=l"(x.high)
               : "l"(global)
               : "memory");
  return x;
}

/// In builds with device checks: a peer may begin seconds later, while its process loads kernels; after half
/// a minute it is lost.
class PeerWait {
 public:
  __device__ __forceinline__ void check(std::uint32_t number, std::uint32_t now) {
#if FLASHLATENT_DEVICE_CHECKS
    constexpr std::uint64_t kMost = 30'000'000'000;
    if (begin_ == 0) begin_ = global_time();
    if (global_time() - begin_ > kMost) {
      printf("flashlatent: block %d thread %d waits for ever for call %u of its peers, now %u\n", blockIdx.x,
             threadIdx.x, number, now);
      __trap();
    }
#endif
  }

 private:
#if FLASHLATENT_DEVICE_CHECKS
  std::uint64_t begin_ = 0;
#endif
};

}  // namespace flashlatent::ptx
