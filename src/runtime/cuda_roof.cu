// Two kernels that measure a GPU's rates: one only reads, one only multiplies.
#include <cuda_bf16.h>

#include "cuda/host/launch.h"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"
#include "runtime/random_value.h"
#include "runtime/roof.h"

namespace flashlatent::runtime {

namespace {

constexpr int kChunkBytes = 8192;
constexpr int kStages = 24;
constexpr int kReadSharedBytes = kChunkBytes * kStages;

/// One thread a CTA keeps kStages bulk copies in flight. The bytes are not used.
__global__ void __launch_bounds__(32, 1) read(const std::uint8_t* memory, std::int64_t chunks) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ ptx::Barrier full[kStages];
  if (threadIdx.x != 0) return;
  for (ptx::Barrier& barrier : full) ptx::init(barrier, 1);
  ptx::publish_barriers();
  auto issue = [&](std::int64_t chunk, int stage) {
    ptx::arrive_expecting(full[stage], kChunkBytes);
    ptx::copy_bytes(shared + stage * kChunkBytes, memory + chunk * kChunkBytes, kChunkBytes, full[stage]);
  };
  std::int64_t next = blockIdx.x;
  for (int stage = 0; stage < kStages && next < chunks; ++stage, next += gridDim.x) issue(next, stage);
  int stage = 0;
  std::uint32_t parity = 0;
  for (std::int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    ptx::wait(full[stage], parity);
    if (next < chunks) {
      issue(next, stage);
      next += gridDim.x;
    }
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

constexpr int kMatmulN = 256;
constexpr int kWarpgroups = 2;
constexpr int kIterations = 2000;
constexpr int kProducts = 16;            // products of m64n256k16 in an iteration
constexpr int kABytes = 8192;            // 64 rows of 64 elements
constexpr int kBBytes = kMatmulN * 128;  // 256 rows of 64
constexpr int kMatmulSharedBytes = kWarpgroups * (kABytes + 2 * kBBytes);

/// Two warpgroups multiply random tiles of shared memory again and again.
__global__ void __launch_bounds__(kWarpgroups * 128, 1) multiply(float* sink) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  auto* elements = reinterpret_cast<__nv_bfloat16*>(shared);
  for (int i = threadIdx.x; i < kMatmulSharedBytes / 2; i += blockDim.x) {
    elements[i] = static_cast<__nv_bfloat16>(random_normal(blockIdx.x, i));
  }
  ptx::fence_for_async_proxy();
  __syncthreads();
  const int warpgroup = threadIdx.x / 128;
  const std::uint32_t a = ptx::shared_address(shared) + warpgroup * kABytes;
  const std::uint32_t b = ptx::shared_address(shared) + kWarpgroups * kABytes + warpgroup * 2 * kBBytes;
  float d[kMatmulN / 2] = {};
  for (int i = 0; i < kIterations; ++i) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      ptx::Wgmma<__nv_bfloat16, kMatmulN>::ss<false>(
          d, ptx::descriptor_k_major(a) + k % 4 * ptx::kStepAlongRow,
          ptx::descriptor_k_major(b + k / 4 % 2 * kBBytes) + k % 4 * ptx::kStepAlongRow, true);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(d);
  }
  float sum = 0;
  for (float x : d) sum += x;
  if (sum == 12345.678F) *sink = sum;  // keeps the compiler from dropping the products
}

}  // namespace

Status launch_read(const void* memory, std::size_t bytes, int multiprocessors, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(cuda::allow_shared_memory<read>(kReadSharedBytes, executor.device));
  return cuda::launch(read, {.blocks = multiprocessors, .threads = 32, .shared_bytes = kReadSharedBytes},
                      executor, static_cast<const std::uint8_t*>(memory),
                      static_cast<std::int64_t>(bytes / kChunkBytes));
}

Result<double> launch_matmul(int multiprocessors, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(cuda::allow_shared_memory<multiply>(kMatmulSharedBytes, executor.device));
  FLASHLATENT_RETURN_IF_ERROR(cuda::launch(
      multiply, {.blocks = multiprocessors, .threads = kWarpgroups * 128, .shared_bytes = kMatmulSharedBytes},
      executor, nullptr));
  return 2.0 * 64 * kMatmulN * 16 * kProducts * kIterations * kWarpgroups * multiprocessors;
}

}  // namespace flashlatent::runtime
