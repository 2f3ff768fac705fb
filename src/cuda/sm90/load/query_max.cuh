// The factor by which Q is multiplied before it becomes fp16, from the largest magnitude of a tile whose rows
// TMA has loaded into shared memory.
#pragma once

#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::sm90 {

/// The exponent of the power of two that brings the largest of the warps' magnitudes (bf16) to 2^14 to 2^15.
template <class Magnitude, int kWarps>
__device__ __forceinline__ int query_exponent(const Magnitude (&of_warps)[kWarps]) {
  Magnitude max = 0;
#pragma unroll
  for (const Magnitude x : of_warps) max = ::max(max, x);
  return ::min(141 - static_cast<int>(max >> 7), 126);
}

/// The larger magnitudes of two bf16 each, with any sign. NaN is ignored.
__device__ __forceinline__ std::uint32_t larger_magnitudes(std::uint32_t a, std::uint32_t b) {
  std::uint32_t max;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(max) : "r"(a), "r"(b));
  return max;
}

/// Searches kChunks consecutive tiles of 64 rows of 64 bf16, by kThreads threads.
template <int kChunks, int kThreads>
class QueryMax {
 public:
  /// `thread`: the caller's number. `rows`: rows of the tile; a box may have other rows behind them.
  __device__ __forceinline__ QueryMax(const void* tiles, int thread, int rows)
      : first_(ptx::shared_address(tiles) + thread * 16), row_(thread * 16 / kRowBytes), rows_(rows) {}

  /// This warp's largest finite magnitude, as bf16.
  __device__ __forceinline__ std::uint32_t of_warp() const {
    const std::uint32_t max = look_through<kAtOnce>([](std::uint32_t pair) { return pair; });
    if (max < kInfinite) return max;
    return look_through<1>(
        [](std::uint32_t pair) { return pair & __vcmpltu2(pair & 0x7FFF7FFFU, kInfinite * 0x10001U); });
  }

 private:
  static constexpr std::uint32_t kInfinite = 0x7F80;
  static constexpr int kBytes = kThreads * 16;
  // iterations until a thread is at the same row again
  static constexpr int kTurns = static_cast<int>(sizeof(Tile)) / kBytes;
  static constexpr int kCount = kChunks * kTurns;
  static constexpr int kAtOnce = kCount % 3 == 0 ? kCount / 3 : 2 * kTurns;
  static_assert(sizeof(Tile) % kBytes == 0 && kCount % kAtOnce == 0 && kAtOnce % kTurns == 0);

  template <int kUnroll, class Finite>
  __device__ __forceinline__ std::uint32_t look_through(Finite finite) const {
    std::uint32_t of_turn[kTurns] = {};
#pragma unroll kUnroll
    for (int i = 0; i < kCount; ++i) {
      const uint4 of = ptx::load_shared_16_bytes(first_ + i * kBytes);
      std::uint32_t& max = of_turn[i % kTurns];
      max = larger_magnitudes(larger_magnitudes(max, larger_magnitudes(finite(of.x), finite(of.y))),
                              larger_magnitudes(finite(of.z), finite(of.w)));
    }
    std::uint32_t max = 0;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      max = larger_magnitudes(max, row_ + i * (kBytes / kRowBytes) < rows_ ? of_turn[i] : 0);
    }
    max &= 0x7FFF7FFFU;
    return __reduce_max_sync(0xffffffff, ::max(max & 0xFFFFU, max >> 16));
  }

  std::uint32_t first_;
  int row_, rows_;
};

}  // namespace flashlatent::sm90
