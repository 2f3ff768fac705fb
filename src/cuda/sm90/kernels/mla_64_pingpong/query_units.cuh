// Q for values in units of tokens (math/fp8_units.cuh): fp16, its RoPE part bf16, all times a power of two
// that brings the tile's largest value to 2^14, so that bf16 values down to 2^-28 of it are exact.
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/smem_layout.cuh"
#include "cuda/sm90/math/fp8_units.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::mla_64_pingpong {

/// A computing thread's values of Q in shared memory, which it converts in place.
template <class Config>
class QueryShare {
 public:
  __device__ __forceinline__ QueryShare(SharedMemory<Config>& shared, int thread)
      : first_(ptx::shared_address(shared.q) + thread * 16) {}

  __device__ __forceinline__ void multiply(float factor) const {
    const std::uint32_t pair = sm90::pack<__nv_bfloat16>(factor, factor);
#pragma unroll 4
    for (int i = 0; i < kLatent; ++i) {
      convert(i, [&](std::uint32_t x) {
        const float2 two = sm90::unpack<__nv_bfloat16>(x);
        return sm90::pack<__half>(two.x * factor, two.y * factor);
      });
    }
#pragma unroll
    for (int i = kLatent; i < kCount; ++i) {
      convert(i, [&](std::uint32_t x) { return sm90::times_bf16(x, pair); });
    }
    ptx::fence_for_async_proxy();
  }

 private:
  static constexpr int kStride = Config::kComputeThreads * 16;
  static constexpr int kCount = Config::kQkChunks * int{sizeof(sm90::Tile)} / kStride;
  static constexpr int kLatent = Config::kVChunks * int{sizeof(sm90::Tile)} / kStride;
  static_assert(sizeof(sm90::Tile) % kStride == 0);

  template <class Convert>
  __device__ __forceinline__ void convert(int i, Convert convert) const {
    const std::uint32_t at = first_ + i * kStride;
    const uint4 of = ptx::load_shared_16_bytes(at);
    ptx::store_16_bytes(at, make_uint4(convert(of.x), convert(of.y), convert(of.z), convert(of.w)));
  }

  std::uint32_t first_;
};

}  // namespace flashlatent::mla_64_pingpong
