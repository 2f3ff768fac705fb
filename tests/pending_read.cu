// For scripts/pending_reads: what it must report, and what it must not.
#include <cstdint>

#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent {

struct Shared {
  alignas(128) std::uint8_t bytes[512];
  ptx::Barrier empty;
};

__device__ __forceinline__ void read(Shared& shared, std::uint32_t (&a)[4]) {
  ptx::load_matrices(a, ptx::shared_address(shared.bytes) + threadIdx.x * 16);
}

/// The arrival does not wait for what is read.
__global__ void overtaken(std::uint32_t* out) {
  __shared__ Shared shared;
  std::uint32_t a[4];
  read(shared, a);
  ptx::arrive(shared.empty);
  out[threadIdx.x] = a[0] + a[1] + a[2] + a[3];
}

/// Whether it comes to the arrival depends on what is read.
__global__ void waited_for(std::uint32_t* out) {
  __shared__ Shared shared;
  std::uint32_t a[4];
  read(shared, a);
  if (a[0] + a[1] + a[2] + a[3] == 7) return;
  ptx::arrive(shared.empty);
  out[threadIdx.x] = a[0];
}

}  // namespace flashlatent
