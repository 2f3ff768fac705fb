// 16 bytes of memory that are written and read atomically: a reader sees a whole write or none of it (PTX
// ISA: .b128 loads and stores of the memory consistency model, sm_70 and newer).
#pragma once

#include <cstdint>

namespace flashlatent::ptx {

struct alignas(16) Word128 {
  std::uint64_t low, high;
};

/// A relaxed store, visible to other CTAs.
__device__ __forceinline__ void store_at_gpu(Word128* global, Word128 x) {
  asm volatile(
      "{\n.reg .b128 x;\nmov.b128 x, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], x;\n}" ::"l"(global),
      "l"(x.low), "l"(x.high)
      : "memory");
}

/// A relaxed load.
__device__ __forceinline__ Word128 load_at_gpu(const Word128* global) {
  Word128 x;
  asm volatile("{\n.reg .b128 x;\nld.relaxed.gpu.global.b128 x, [%2];\nmov.b128 {%0, %1}, x;\n}"
               : "=l"(x.low), "=l"(x.high)
               : "l"(global)
               : "memory");
  return x;
}

/// Stores `x` if the memory holds `expected`. Returns the previous value.
__device__ __forceinline__ Word128 compare_and_swap_at_gpu(Word128* global, Word128 expected, Word128 x) {
  Word128 before;
  asm volatile(
      "{\n.reg .b128 expected, x, before;\nmov.b128 expected, {%3, %4};\nmov.b128 x, {%5, %6};\n"
      "atom.relaxed.gpu.global.cas.b128 before, [%2], expected, x;\nmov.b128 {%0, %1}, before;\n}"
      : "=l"(before.low), "=l"(before.high)
      : "l"(global), "l"(expected.low), "l"(expected.high), "l"(x.low), "l"(x.high)
      : "memory");
  return before;
}

/// Nanoseconds of a clock that all multiprocessors share.
__device__ __forceinline__ std::uint64_t global_time() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace flashlatent::ptx
