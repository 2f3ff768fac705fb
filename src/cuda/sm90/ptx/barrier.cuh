// Barriers in shared memory (mbarrier) and named barriers of a CTA.
#pragma once

#include <cstdint>
#include <cstdio>

#include "cuda/sm90/ptx/instructions.cuh"

namespace flashlatent::ptx {

using Barrier = std::uint64_t;

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void init(Barrier& barrier, std::uint32_t arrivals) {
  ::cuda::ptx::mbarrier_init(&barrier, arrivals);
}
/// Call after init, before any other thread or the copy engine uses the barriers.
__device__ __forceinline__ void publish_barriers() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}

__device__ __forceinline__ void arrive(Barrier& barrier) {
  ::cuda::ptx::mbarrier_arrive(&barrier);
}

/// Arrives `count` times at once.
__device__ __forceinline__ void arrive(Barrier& barrier, std::uint32_t count) {
  ::cuda::ptx::mbarrier_arrive(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                               &barrier, count);
}

/// Arrives at the barrier in the same place of another CTA of the cluster.
__device__ __forceinline__ void arrive_at(std::uint32_t cta, Barrier& barrier) {
  std::uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(&barrier)), "r"(cta));
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}

__device__ __forceinline__ std::uint32_t rank_in_cluster() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// A barrier of all threads of all CTAs of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The two halves of cluster_sync(). They make nothing visible but published barriers.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
/// Makes all earlier writes visible to the threads that wait.
__device__ __forceinline__ void cluster_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The address of the same place in another CTA of the cluster.
__device__ __forceinline__ std::uint32_t address_in(std::uint32_t cta, const void* pointer) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(pointer)), "r"(cta));
  return address;
}

/// Arrives and announces `bytes` of bulk copies that the phase also waits for.
__device__ __forceinline__ void arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
  ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                         ::cuda::ptx::space_shared, &barrier, bytes);
}

/// Announces `bytes` without an arrival: the phase also waits for the thread's arrival after this.
__device__ __forceinline__ void expect(Barrier& barrier, std::uint32_t bytes) {
  ::cuda::ptx::mbarrier_expect_tx(::cuda::ptx::sem_relaxed, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                                  &barrier, bytes);
}

/// Waits for a limited time for the phase of this parity.
template <::cuda::ptx::dot_scope kScope>
__device__ __forceinline__ bool is_complete(Barrier& barrier, std::uint32_t parity) {
  return ::cuda::ptx::mbarrier_try_wait_parity(::cuda::ptx::sem_acquire, ::cuda::ptx::scope_t<kScope>(),
                                               &barrier, parity);
}

/// Only in builds with device checks: if a wait takes seconds, something was lost, and a trap that names the
/// place is better than a hang.
__device__ __forceinline__ void check_tries(std::uint32_t tries, const char* what, std::uint32_t place,
                                            std::uint32_t state) {
#if FLASHLATENT_DEVICE_CHECKS
  if (tries == 4000000) {
    printf("flashlatent: block %d thread %d waits for ever for %s %u, now %u\n", blockIdx.x, threadIdx.x,
           what, place, state);
    __trap();
  }
#endif
}

/// Waits until the phase of this parity is complete. kScope: the threads whose writes are waited for.
template <::cuda::ptx::dot_scope kScope = ::cuda::ptx::dot_scope::cta>
__device__ __forceinline__ void wait(Barrier& barrier, std::uint32_t parity) {
  for (std::uint32_t tries = 0; !is_complete<kScope>(barrier, parity); ++tries) {
    check_tries(tries, "the barrier at", shared_address(&barrier), parity);
  }
}

/// The same, for what other CTAs of the cluster do.
__device__ __forceinline__ void wait_for_cluster(Barrier& barrier, std::uint32_t parity) {
  wait<::cuda::ptx::dot_scope::cluster>(barrier, parity);
}

/// True in one thread of a converged warp, in a form that tells the compiler so.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

/// Threads of a warp arrive at, or wait for, named barrier `id` (1 to 15) of `threads` threads.
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// The same. Returns whether `mine` is true in any of them.
__device__ __forceinline__ bool named_any(int id, int threads, bool mine) {
  std::uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\nbarrier.cta.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<std::uint32_t>(mine))
      : "memory");
  return any != 0;
}

/// Makes this thread's ordinary stores to shared memory visible to wgmma and bulk copies.
__device__ __forceinline__ void fence_for_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace flashlatent::ptx
