// Warpgroup matrix products (PTX ISA, "wgmma"): D[64, N] += A[64, 16] B[16, N], issued by 128 threads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/ptx/barrier.cuh"

namespace flashlatent::ptx {

/// ss: A and B are matrix descriptors of shared memory. rs: A is in registers, four packed pairs a thread.
/// kTransposeB: B's rows (the k dimension) are strided and its columns contiguous, as V's are.
template <class Element, int kN>
struct Wgmma;

#include "cuda/sm90/ptx/wgmma_shapes.inc"

/// Call before the first product of a batch: makes registers and shared memory written so far visible to the
/// products.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// A wgmma_wait<0>() that the compiler does not merge with another one. If both branches of a condition wait,
/// it would merge the waits, and evaluate the condition only when products are done.
__device__ __forceinline__ void wgmma_wait_apart() {
  asm volatile("wgmma.wait_group.sync.aligned 0; // apart" ::: "memory");
}

/// Keeps the computation of `sum` before the next wait. The compiler moves a wait in front of code that does
/// not depend on it, which then no longer overlaps products; it does not move a wait across code that may
/// sleep, and its operands. `sum` is never negative.
__device__ __forceinline__ void keep_before_wait(float sum) {
  asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p nanosleep.u32 20;\n}" ::"f"(sum)
               : "memory");
}

/// Keeps the compiler from moving uses of accumulators across a wait that does not name them.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

/// Descriptor of a tile of rows of 128 bytes, swizzled in atoms of 8 rows (1,024 bytes, so aligned).
/// Rows are M or N, 64 elements of k a row: advance by 16 elements of k with + kStepAlongRow.
__device__ __forceinline__ std::uint64_t descriptor_k_major(std::uint32_t shared_address) {
  constexpr std::uint64_t kSwizzle128 = 1ULL << 62;
  constexpr std::uint64_t kAtomStride = (1024ULL >> 4) << 32;
  constexpr std::uint64_t kUnused = 1ULL << 16;  // the leading offset has no meaning for this layout
  return kSwizzle128 | kAtomStride | kUnused | ((shared_address & 0x3FFFF) >> 4);
}

/// The same tiles with rows as k and 64 elements of N a row (use with kTransposeB). Tiles of the next 64
/// columns follow `tile_stride` bytes on. Advance by 16 rows of k with + kStepAlongRows.
__device__ __forceinline__ std::uint64_t descriptor_n_major(std::uint32_t shared_address,
                                                            std::uint32_t tile_stride) {
  constexpr std::uint64_t kSwizzle128 = 1ULL << 62;
  constexpr std::uint64_t kAtomStride = (1024ULL >> 4) << 32;
  return kSwizzle128 | kAtomStride | (static_cast<std::uint64_t>(tile_stride >> 4) << 16) |
         ((shared_address & 0x3FFFF) >> 4);
}

/// The descriptor with another low word, in units of 16 bytes: + bytes / 16 is `bytes` further.
__device__ __forceinline__ std::uint64_t with_low_word(std::uint64_t descriptor, std::uint32_t low) {
  return (descriptor & 0xFFFFFFFF00000000ULL) | low;
}

/// Makes descriptors of tiles in a CTA's shared memory by adding constants to the descriptor of its begin.
/// From a tile's own address a descriptor takes three more instructions in a chain (mask, shift, union),
/// between a tile's barrier and its first product: 128 query heads took 1.5 % longer, two query tokens 2 %.
/// kInCluster: addresses have the CTA's rank in their upper bits, which a mask removes.
template <bool kInCluster>
class Descriptors {
 public:
  __device__ __forceinline__ explicit Descriptors(const void* shared) : shared_(shared) {}

  /// As descriptor_k_major() and descriptor_n_major().
  __device__ __forceinline__ std::uint64_t k_major(const void* tile) const {
    return with_address(descriptor_k_major(0), tile);
  }
  __device__ __forceinline__ std::uint64_t n_major(const void* tile, std::uint32_t tile_stride) const {
    return with_address(descriptor_n_major(0, tile_stride), tile);
  }

 private:
  __device__ __forceinline__ std::uint64_t with_address(std::uint64_t of_0, const void* tile) const {
    const auto offset = static_cast<std::uint32_t>(static_cast<const std::uint8_t*>(tile) -
                                                   static_cast<const std::uint8_t*>(shared_));
    const std::uint32_t begin = shared_address(shared_) & (kInCluster ? 0x3FFFF : 0xFFFFFFFF);
    return with_low_word(of_0, (begin >> 4) + ((offset >> 4) + static_cast<std::uint32_t>(of_0)));
  }

  const void* shared_;
};

inline constexpr std::uint64_t kStepAlongRow = (16 * 2) >> 4;     // 16 elements
inline constexpr std::uint64_t kStepAlongRows = (16 * 128) >> 4;  // 16 rows

/// Moves registers from warpgroups that wait to those that compute (setmaxnreg).
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace flashlatent::ptx
