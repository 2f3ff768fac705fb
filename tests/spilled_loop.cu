// For scripts/loop_spills: the same loop of products with registers enough, and without.
#include <cstdint>

namespace {

constexpr int kTiles = 12;

__device__ __forceinline__ void multiply(float (&d)[4], std::uint32_t a, std::uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4}, {%5}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a), "r"(b));
}

__device__ __forceinline__ void run(const std::uint32_t* from, float* to, int steps) {
  float d[kTiles][4] = {};
  for (int i = 0; i < steps; ++i) {
    const std::uint32_t a = from[i * 32 + threadIdx.x];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) multiply(d[j], a, a + j);
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) to[(j * 4 + k) * 32 + threadIdx.x] = d[j][k];
  }
}

}  // namespace

__global__ void __launch_bounds__(32) kept(const std::uint32_t* from, float* to, int steps) {
  run(from, to, steps);
}

// 32 registers a thread, of which the sums alone are 48.
__global__ void __launch_bounds__(1024, 2) spilled(const std::uint32_t* from, float* to, int steps) {
  run(from, to, steps);
}
