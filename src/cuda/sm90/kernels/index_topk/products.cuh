// What scorers do with products: weighted sums over heads; products of a warp alone, for scales that lie far
// apart.
#pragma once

#include "cuda/sm90/kernels/index_topk/queries.cuh"
#include "cuda/sm90/ptx/maximum.cuh"
#include "cuda/sm90/ptx/mma.cuh"

namespace flashlatent::cuda::indexer {

/// A thread's fragments of 64 keys: rows r and r + 8 of its warp's 16 (r = lane / 4), a fragment for each
/// step of 32 columns.
struct Keys {
  std::uint32_t fragments[index_keys::kGroups][4];
};

/// 2 relu(x) of finite x, or NaN; weights are halves. An addition takes half as long as a maximum.
__device__ __forceinline__ float twice_relu(float x) {
  return x + fabsf(x);
}

/// Weighted sums over heads of two rows. Each sum has two accumulators, so that half as many additions depend
/// on one another.
struct Totals {
  float first[2] = {0, 0}, second[2] = {0, 0};
};

/// Adds kColumns heads, whose weights lie as weight_place() says.
template <int kColumns>
__device__ __forceinline__ void add_heads(Totals& totals, const float (&dots)[kColumns / 2],
                                          const float* weights, int lane) {
#pragma unroll
  for (int j = 0; j < kColumns / 16; ++j) {
    const float4 w = *reinterpret_cast<const float4*>(weights + j * 16 + lane % 4 * 4);
    const float(&x)[kColumns / 2] = dots;
    totals.first[0] = fmaf(w.x, twice_relu(x[8 * j]), totals.first[0]);
    totals.first[1] = fmaf(w.y, twice_relu(x[8 * j + 1]), totals.first[1]);
    totals.second[0] = fmaf(w.x, twice_relu(x[8 * j + 2]), totals.second[0]);
    totals.second[1] = fmaf(w.y, twice_relu(x[8 * j + 3]), totals.second[1]);
    totals.first[0] = fmaf(w.z, twice_relu(x[8 * j + 4]), totals.first[0]);
    totals.first[1] = fmaf(w.w, twice_relu(x[8 * j + 5]), totals.first[1]);
    totals.second[0] = fmaf(w.z, twice_relu(x[8 * j + 6]), totals.second[0]);
    totals.second[1] = fmaf(w.w, twice_relu(x[8 * j + 7]), totals.second[1]);
  }
}

/// Scales of keys or of a query token that lie far apart take a factor for each 32 columns. Such products are
/// a warp's own, eight heads at a time: beside a warpgroup's products registers would not suffice.
inline constexpr int kRareHeads = 8;

/// part += step `step` of q . k of eight heads. `head_row`: in shared memory, of this lane's head (lane / 4).
__device__ __forceinline__ void multiply_rare_step(float (&part)[4], const std::uint32_t (&fragment)[4],
                                                   const std::uint8_t* head_row, int step, int lane) {
  const auto word = [&](int unit) {
    return *reinterpret_cast<const std::uint32_t*>(head_row + (unit ^ (lane / 4)) * 16 + lane % 4 * 4);
  };
  ptx::mma_e4m3(part, fragment, word(2 * step), word(2 * step + 1));
}

__device__ __forceinline__ void add_rare_heads(Totals& totals, const float (&dots)[4], const float* weights,
                                               int first, int lane) {
  const float2 half = *reinterpret_cast<const float2*>(weights + weight_place(first + lane % 4 * 2));
  const float2 w = make_float2(2 * half.x, 2 * half.y);
  // Scales may make infinities.
  totals.first[0] = fmaf(w.x, ptx::max_with_nan(dots[0], 0), totals.first[0]);
  totals.first[1] = fmaf(w.y, ptx::max_with_nan(dots[1], 0), totals.first[1]);
  totals.second[0] = fmaf(w.x, ptx::max_with_nan(dots[2], 0), totals.second[0]);
  totals.second[1] = fmaf(w.y, ptx::max_with_nan(dots[3], 0), totals.second[1]);
}

}  // namespace flashlatent::cuda::indexer
