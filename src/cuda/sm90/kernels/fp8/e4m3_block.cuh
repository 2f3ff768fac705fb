// What differs for e4m3 latents: groups have no scales, RoPE is e4m3, too, and a block lies in atoms
// (load/atoms.cuh). The cache's one scale is a factor of scores and of the output.
#pragma once

#include "cuda/sm90/kernels/fp8/products.cuh"
#include "cuda/sm90/load/atoms.cuh"
#include "cuda/sm90/walk/arguments.h"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::fp8 {

/// The cache's scale; 1 without one.
__device__ __forceinline__ float cache_scale(const sm90::DecodeArguments& args) {
  return args.cache.scale == nullptr ? 1.0F : __ldg(args.cache.scale);
}

/// The factor of scores of the tile's row n, for its query.
__device__ __forceinline__ float query_scale(const sm90::QueryArguments& query, const sm90::RowTile& tile,
                                             int n) {
  if (query.scale == nullptr || n >= tile.rows) return 1;
  return __ldg(query.scale + (query.scale_a_head ? tile.head(query, n) : 0));
}

template <class Config>
struct E4m3Block {
  static constexpr int kRows = Config::kRows;

  /// S^T = K Q^T. `block`: its address; `q`: descriptor of Q's first tile. Before operands are converted the
  /// caller finishes the products under way.
  template <class Fragment, class Finish>
  __device__ __forceinline__ static void score(float (&s)[kRows / 2], std::uint32_t block, std::uint64_t q,
                                               Fragment fragment, Finish finish) {
    constexpr std::uint64_t kTileStep = Config::kTileBytes >> 4;
    // Each lane of the quad has 16 bytes of each chunk.
    const std::uint32_t row =
        block + sm90::atoms::block_offset<Config::kChunks>(fragment().row, 0, fragment().column / 2);
    fp8::KeyBytes bytes = keys(row);
    fp8::Operands a[2];
    finish();
#pragma unroll
    for (int i = 0; i < Config::kChunks; ++i) {
      if (i >= 2) ptx::wgmma_wait<1>();
      fp8::widen_keys(a[i % 2], bytes);
      if (i + 1 < Config::kChunks) bytes = keys(row + (i + 1) * sm90::atoms::kAtomBytes);
      ptx::wgmma_fence();
      fp8::multiply<__half, kRows>(s, a[i % 2], q + i * kTileStep, i > 0);
      ptx::wgmma_commit();
    }
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
  }

  /// This lane's token of a block's first 32, at the columns of warpgroup `me` that are its warp's.
  __device__ __forceinline__ static std::uint32_t value_row(std::uint32_t block, int me, int thread) {
    return block +
           sm90::atoms::block_offset<Config::kChunks>(thread % 32, me * Config::kPartChunks, thread / 32);
  }
  __device__ __forceinline__ static fp8::ValueBytes values(std::uint32_t row, int chunk) {
    return fp8::ValueBytes::at<Config::kTokenBytes>(row + chunk * sm90::atoms::kAtomBytes);
  }

  /// A weight of 0 does not silence NaN. So V of dead tokens becomes 0, and so does NaN in tokens that only
  /// some rows see (`partial`): rows that see it have NaN scores, since it is in K, too. For warpgroup `me`'s
  /// columns, by its threads, which must synchronise afterwards.
  __device__ __forceinline__ static void silence(std::uint8_t* block, int me, int thread, std::uint64_t live,
                                                 std::uint64_t partial) {
    constexpr int kUnits = Config::kPartDim / 16;  // of a token
#pragma unroll 1
    for (int i = thread; i < 64 * kUnits; i += 128) {
      const int token = i / kUnits, unit = i % kUnits;
      const bool dead = !(live >> token & 1);
      if (!dead && !(partial >> token & 1)) continue;
      auto* at = reinterpret_cast<uint4*>(block + sm90::atoms::block_offset<Config::kChunks>(
                                                      token, me * Config::kPartChunks + unit / 4, unit % 4));
      uint4 value = make_uint4(0, 0, 0, 0);
      if (!dead) {
        value = *at;
        value = make_uint4(without_nan(value.x), without_nan(value.y), without_nan(value.z),
                           without_nan(value.w));
      }
      *at = value;
    }
    ptx::fence_for_async_proxy();  // the block's place is written by copies next
  }

  __device__ __forceinline__ static fp8::KeyBytes keys(std::uint32_t row) {
    return fp8::KeyBytes::at<Config::kTokenBytes>(row);
  }

 private:
  __device__ __forceinline__ static std::uint32_t without_nan(std::uint32_t word) {
    return word & ~__vcmpeq4(word & 0x7F7F7F7FU, 0x7F7F7F7FU);
  }
};

}  // namespace flashlatent::fp8
