// Q of a tile as e4m3, by the scorer: copied, or from bf16. Each bf16 row is scaled to at most 448 by its own
// power of two.
#pragma once

#include "core/formats/e4m3_latent.h"
#include "cuda/sm90/kernels/mla_64_e4m3/smem_layout.cuh"
#include "cuda/sm90/kernels/mla_64_e4m3/tiles.cuh"
#include "cuda/sm90/load/q_loader.cuh"

namespace flashlatent::mla_64_e4m3 {

template <class Config>
class Query {
 public:
  __device__ __forceinline__ Query(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : shared_(shared), args_(args) {}

  /// By 128 threads, when the previous Q is no longer read; they must synchronise before the new one is read.
  __device__ __forceinline__ void take(const sm90::RowTile& tile) const {
    const int thread = threadIdx.x % 128;
    const float scale = args_.scale_log2 * (args_.cache.scale == nullptr ? 1.0F : __ldg(args_.cache.scale));
    if (args_.query.is_e4m3) {
      copy(tile, thread);
      if (thread < 64) shared_.row_scale[thread] = thread < tile.rows ? scale * scale_of(tile, thread) : 0.0F;
    } else {
      round(tile, thread, scale);
    }
    ptx::fence_for_async_proxy();
  }

 private:
  __device__ __forceinline__ float scale_of(const sm90::RowTile& tile, int row) const {
    const float* scales = args_.query.scale;
    if (scales == nullptr) return 1.0F;
    return __ldg(scales + (args_.query.scale_a_head ? tile.head(args_.query, row) : 0));
  }

  __device__ __forceinline__ void copy(const sm90::RowTile& tile, int thread) const {
    constexpr int kRowUnits = Config::kQkDim / 16, kUnits = 64 * kRowUnits;
    constexpr int kInFlight = kRowUnits % 3 == 0 ? 6 : 4;
    static_assert(kUnits % (kInFlight * 128) == 0);
#pragma unroll 1
    for (int first = thread; first < kUnits; first += kInFlight * 128) {
      uint4 values[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int index = first + i * 128, row = index / kRowUnits;
        values[i] = make_uint4(0, 0, 0, 0);
        if (row < tile.rows) {
          values[i] = __ldg(
              sm90::query_unit<std::uint8_t, Config::kQkDim>(args_.query, tile, row, index % kRowUnits));
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int index = first + i * 128, row = index / kRowUnits, unit = index % kRowUnits;
        *reinterpret_cast<uint4*>(shared_.q[unit / 4] + tile_offset(row, unit % 4)) = values[i];
      }
    }
  }

  /// A warp's 16 rows, kAtOnce at a time.
  __device__ __forceinline__ void round(const sm90::RowTile& tile, int thread, float scale) const {
    constexpr int kAtOnce = 4, kRowUnits = Config::kQkDim / 8, kTurns = (kRowUnits + 31) / 32;
    const int lane = thread % 32, begin = thread / 32 * 16;
#pragma unroll 1
    for (int first = begin; first < begin + 16; first += kAtOnce) {
      uint4 values[kAtOnce][kTurns];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int read = min(first + k, max(tile.rows - 1, 0));
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
          static_assert(query_parts::first_columns(Config::kQkDim) % 256 == 0, "a turn is of one part");
          const bool live = first + k < tile.rows && i * 32 + lane < kRowUnits;
          const uint4* unit =
              sm90::query_unit<__nv_bfloat16, Config::kQkDim>(args_.query, tile, read, i * 32) + lane;
          values[k][i] = live ? __ldg(unit) : make_uint4(0, 0, 0, 0);
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int exponent = exponent_of(values[k]);
        if (lane == 0) shared_.row_scale[first + k] = scale * e4m3_latent::power_of_two(exponent);
        const float factor = e4m3_latent::power_of_two(-exponent);
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
          const int unit = i * 32 + lane;
          if (unit >= kRowUnits) continue;
          const uint4& of = values[k][i];
          *reinterpret_cast<uint2*>(shared_.q[unit / 8] + tile_offset(first + k, unit % 8 / 2) +
                                    unit % 2 * 8) =
              make_uint2(rounded(of.x, of.y, factor), rounded(of.z, of.w, factor));
        }
      }
    }
  }

  /// The exponent of the largest finite magnitude of a warp's row.
  template <int kTurns>
  __device__ __forceinline__ static int exponent_of(const uint4 (&values)[kTurns]) {
    std::uint32_t max = 0;
#pragma unroll
    for (const uint4& of : values) {
#pragma unroll
      for (std::uint32_t word : {of.x, of.y, of.z, of.w}) {
        const std::uint32_t magnitudes = word & 0x7FFF7FFFU;
        max = __vmaxu2(max, magnitudes & __vcmpltu2(magnitudes, 0x7F807F80U));
      }
    }
    max = __reduce_max_sync(0xffffffff, ::max(max & 0xFFFFU, max >> 16));
    return e4m3_latent::query_exponent(__uint_as_float(max << 16));
  }
  /// Values that are not finite become NaN.
  __device__ __forceinline__ static std::uint32_t rounded(std::uint32_t low, std::uint32_t high,
                                                          float factor) {
    const float2 a = sm90::unpack<__nv_bfloat16>(low), b = sm90::unpack<__nv_bfloat16>(high);
    auto scaled = [&](float x) {
      x *= factor;
      return fmaf(x, 0.0F, x);
    };
    return pack_e4m3(scaled(a.x), scaled(a.y), scaled(b.x), scaled(b.y));
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
};

}  // namespace flashlatent::mla_64_e4m3
