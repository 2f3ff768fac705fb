// Data movement: bulk tensor copies (TMA), cp.async, stmatrix.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/sm90/ptx/barrier.cuh"

namespace flashlatent::ptx {

/// Copies one box of a 4-dimensional tensor to shared memory; `barrier` counts its bytes.
__device__ __forceinline__ void copy_box(void* shared, const CUtensorMap& map, int x0, int x1, int x2, int x3,
                                         Barrier& barrier) {
  const std::int32_t coordinates[4] = {x0, x1, x2, x3};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, shared, &map,
                                    coordinates, &barrier);
}

/// The same for five dimensions.
__device__ __forceinline__ void copy_box(void* shared, const CUtensorMap& map, int x0, int x1, int x2, int x3,
                                         int x4, Barrier& barrier) {
  const std::int32_t coordinates[5] = {x0, x1, x2, x3, x4};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, shared, &map,
                                    coordinates, &barrier);
}

/// An L2 policy for data that is read once.
__device__ __forceinline__ std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// An L2 policy that leaves a line's priority as it is (least recently used first).
__device__ __forceinline__ std::uint64_t evict_unchanged_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// copy_box() with an L2 policy.
__device__ __forceinline__ void copy_box(void* shared, const CUtensorMap& map, int x0, int x1, int x2, int x3,
                                         Barrier& barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(shared_address(&barrier)), "l"(policy)
      : "memory");
}
/// The same for five dimensions.
__device__ __forceinline__ void copy_box(void* shared, const CUtensorMap& map, int x0, int x1, int x2, int x3,
                                         int x4, Barrier& barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(shared_address(&barrier)), "l"(policy)
      : "memory");
}

/// Copies `bytes` (a multiple of 16) of contiguous memory to shared memory; `barrier` counts them.
__device__ __forceinline__ void copy_bytes(void* shared, const void* global, std::uint32_t bytes,
                                           Barrier& barrier) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, shared, global, bytes,
                             &barrier);
}
/// copy_bytes() with an L2 policy.
__device__ __forceinline__ void copy_bytes(void* shared, const void* global, std::uint32_t bytes,
                                           Barrier& barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(&barrier)), "l"(policy)
      : "memory");
}

/// Copies `bytes` (a multiple of 16) of shared memory to the same place in another CTA of the cluster; that
/// CTA's `barrier` counts them.
__device__ __forceinline__ void copy_to_cta(std::uint32_t cta, const void* shared, std::uint32_t bytes,
                                            Barrier& barrier) {
  const std::uint32_t source = shared_address(shared);
  asm volatile(
      "{\n.reg .b32 to, counter;\n"
      "mapa.shared::cluster.u32 to, %0, %3;\n"
      "mapa.shared::cluster.u32 counter, %1, %3;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %2, "
      "[counter];\n}" ::"r"(source),
      "r"(shared_address(&barrier)), "r"(bytes), "r"(cta)
      : "memory");
}

/// Copies `bytes` (a multiple of 16) of shared memory to memory; call after fence_for_async_proxy(). The
/// thread must wait for its copies before it ends.
__device__ __forceinline__ void copy_to_memory(void* global, const void* shared, std::uint32_t bytes) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_global, ::cuda::ptx::space_shared, global, shared, bytes);
}
__device__ __forceinline__ void wait_for_copies_to_memory() {
  ::cuda::ptx::cp_async_bulk_commit_group();
  ::cuda::ptx::cp_async_bulk_wait_group(::cuda::ptx::n32_t<0>());
}

/// The same, but memory may be written later: only shared memory has been read.
__device__ __forceinline__ void wait_until_copies_have_read() {
  ::cuda::ptx::cp_async_bulk_commit_group();
  ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>());
}

/// Prefetches the 128 bytes around an address to L2.
__device__ __forceinline__ void prefetch_line_to_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

/// Sends 16, 8 or 4 bytes to another CTA's shared memory; its `barrier` counts them. Addresses come from
/// address_in().
__device__ __forceinline__ void send(std::uint32_t to, float4 value, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          to),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void send(std::uint32_t to, uint4 value, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          to),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void send(std::uint32_t to, float2 value, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
      "f"(value.x), "f"(value.y), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void send(std::uint32_t to, std::uint32_t value, std::uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(value), "r"(barrier)
               : "memory");
}

/// An atomic addition with acquire and release semantics at the GPU's scope. Returns the previous value.
__device__ __forceinline__ unsigned long long add_at_gpu(unsigned long long* global, unsigned long long x) {
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(global), "l"(x)
               : "memory");
  return before;
}

/// An acquiring load at the GPU's scope.
__device__ __forceinline__ unsigned long long load_acquire_at_gpu(const unsigned long long* global) {
  unsigned long long x;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(global) : "memory");
  return x;
}
/// A relaxed load at the GPU's scope.
__device__ __forceinline__ unsigned long long load_relaxed_at_gpu(const unsigned long long* global) {
  unsigned long long x;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(global) : "memory");
  return x;
}

/// Fetches a tensor map before its first use.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Copies 16 bytes from global to shared memory, bypassing L1.
__device__ __forceinline__ void copy_16_bytes(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
/// Copies 8 bytes, or 4.
__device__ __forceinline__ void copy_8_bytes(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_4_bytes(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
/// copy_16_bytes(), or zeros without a read if it is not `live`. L2 fetches 128 bytes. Bytes that are 32
/// aligned bytes in memory but not in shared memory are fetched twice.
__device__ __forceinline__ void copy_16_bytes_or_zeros(std::uint32_t shared, const void* global, bool live) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(live ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Arrives at the barrier when all copies that this thread has started have landed.
__device__ __forceinline__ void copy_arrive(Barrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}
/// The same, in addition to the arrivals that the barrier expects.
__device__ __forceinline__ void copy_arrive_beside(Barrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

/// Loads 16 bytes that no kernel writes meanwhile; the compiler does not move the load behind later code.
__device__ __forceinline__ uint4 load_16_bytes(const void* global) {
  uint4 value;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global));
  return value;
}

__device__ __forceinline__ void store_16_bytes(std::uint32_t shared, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

/// Stores 16 bytes to memory, likewise.
__device__ __forceinline__ void store_16_bytes_to_global(void* global, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ uint4 load_shared_16_bytes(std::uint32_t shared) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(shared)
               : "memory");
  return value;
}
__device__ __forceinline__ const std::uint8_t* load_shared_pointer(std::uint32_t shared) {
  const std::uint8_t* value;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(value) : "r"(shared) : "memory");
  return value;
}
__device__ __forceinline__ float load_float(std::uint32_t shared) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(shared) : "memory");
  return value;
}

/// Stores four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrices(std::uint32_t shared, const std::uint32_t (&values)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(values[0]), "r"(values[1]), "r"(values[2]), "r"(values[3])
               : "memory");
}

/// Loads four such matrices.
__device__ __forceinline__ void load_matrices(std::uint32_t (&values)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(shared)
               : "memory");
}

/// Loads them transposed: a lane's pair is of one column.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&values)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(shared)
               : "memory");
}

/// Stores two or four 8x8 matrices transposed: a thread's row of the fragment becomes a column.
__device__ __forceinline__ void store_matrices_transposed(std::uint32_t shared,
                                                          const std::uint32_t (&values)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared), "r"(values[0]),
               "r"(values[1])
               : "memory");
}
__device__ __forceinline__ void store_matrices_transposed(std::uint32_t shared,
                                                          const std::uint32_t (&values)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(values[0]), "r"(values[1]), "r"(values[2]), "r"(values[3])
               : "memory");
}

/// condition ? a : b as one instruction. For many of these the compiler would make branches and run both
/// sides.
__device__ __forceinline__ std::uint32_t select(std::uint32_t condition, std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\nselp.b32 %0, %1, %2, p;\n}"
      : "=r"(result)
      : "r"(a), "r"(b), "r"(condition));
  return result;
}

/// An 8x8 matrix of 16-bit elements, a pair a lane (row lane / 4, columns lane % 4 * 2 + {0, 1}), transposed.
__device__ __forceinline__ std::uint32_t transpose_matrix(std::uint32_t pair) {
  std::uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

}  // namespace flashlatent::ptx
