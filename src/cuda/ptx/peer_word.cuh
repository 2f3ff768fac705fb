// 16 bytes that a GPU writes in another one's memory as one. PTX has scalar .b128 accesses of the memory
// consistency model at scope .sys since 8.4 (sm_70 and newer); a vector such as .v4.b32 promises each element
// alone, in any order. Between GPUs they are atomic where these have native atomics on each other's memory,
// as those that NVLink joins have.
#pragma once

#include <cstdint>
#include <cstdio>

#include "cuda/ptx/word128.cuh"

namespace flashlatent::ptx {

/// For threads of any GPU to read; orders nothing else.
__device__ __forceinline__ void store_at_system(Word128* global, Word128 x) {
  asm volatile(
      "{\n.reg .b128 x;\nmov.b128 x, {%1, %2};\nst.relaxed.sys.global.b128 [%0], x;\n}" ::"l"(global),
      "l"(x.low), "l"(x.high)
      : "memory");
}

/// What is there now.
__device__ __forceinline__ Word128 load_at_system(const Word128* global) {
  Word128 x;
  asm volatile("{\n.reg .b128 x;\nld.relaxed.sys.global.b128 x, [%2];\nmov.b128 {%0, %1}, x;\n}"
               : "=l"(x.low), "=l"(x.high)
               : "l"(global)
               : "memory");
  return x;
}

/// In builds with device checks: a peer may begin seconds later, when its process loads kernels. Half a
/// minute is for one that is lost.
class PeerWait {
 public:
  __device__ __forceinline__ void check(std::uint32_t number, std::uint32_t now) {
#if FLASHLATENT_DEVICE_CHECKS
    constexpr std::uint64_t kMost = 30'000'000'000;
    if (begin_ == 0) begin_ = global_time();
    if (global_time() - begin_ > kMost) {
      printf("flashlatent: block %d thread %d waits for ever for exchange %u, now %u\n", blockIdx.x,
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
