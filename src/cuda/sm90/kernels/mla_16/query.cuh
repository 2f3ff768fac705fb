// Q as A operands of mma.sync in each warp's registers: all of its columns, or half of them.
#pragma once

#include "cuda/sm90/kernels/mla_16/config.h"
#include "cuda/sm90/load/q_loader.cuh"
#include "cuda/sm90/ptx/mma.cuh"

namespace flashlatent::mla_16 {

/// Columns in strips of 32, two steps of mma.sync. Warp `half` (0 or 1) of a pair has strip number `half` of
/// each of RoPE's chunks, and both strips of each chunk in its half of V's. A lone warp has both strips of
/// each chunk. This struct says where they are.
template <class Config>
struct Strips {
  static constexpr int kAChunk = Config::kPairedWarps ? 1 : 2;  // strips of a chunk of RoPE's
  static constexpr int kRope = Config::kRopeChunks * kAChunk;
  static constexpr int kHalfChunks = Config::kVChunks / 2;
  static constexpr int kCount = kRope + Config::kVChunks * kAChunk;

  /// Does the i-th strip begin a tile? If not, it is the second strip of the previous tile.
  __host__ __device__ static constexpr bool begins_tile(int i) {
    return Config::kPairedWarps && i < kRope || (i - kRope) % 2 == 0;
  }
  /// The tile of the i-th strip, in the order of loading.
  __device__ __forceinline__ static int tile(int i, int half) {
    if (i < kRope) return i / kAChunk;
    return Config::kRopeChunks + half * kHalfChunks + (i - kRope) / 2;
  }
  /// The first 16-byte unit of the i-th strip in its tile: 0 or 4.
  __device__ __forceinline__ static int unit(int i, int half) {
    if (i < kRope) return Config::kPairedWarps ? 4 * half : i % 2 * 4;
    return (i - kRope) % 2 * 4;
  }
};

/// A product sums over columns in any order, if both operands have the same order. So a lane takes 16
/// consecutive bytes of a row, eight columns, as its pairs of two steps of 16 columns. Both Q from memory and
/// K from shared memory then come 16 bytes at a time.
template <class Config>
class Query {
  static_assert(query_parts::first_columns(Config::kQkChunks * 64) == Config::kVChunks * 64);

 public:
  using Element = typename Config::Element;

  /// The addresses of a lane's strips of its two rows. Rows past the last live one read the first row; their
  /// results are not written.
  struct Place {
    const uint4 *rows[2], *rope[2];
  };
  __device__ __forceinline__ static Place find(const sm90::QueryArguments& query, const sm90::RowTile& tile,
                                               int lane) {
    Place place;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int row = lane / 4 + 8 * side, read = row < tile.rows ? row : 0;
      place.rows[side] =
          reinterpret_cast<const uint4*>(sm90::query_row<Element>(query, tile, read)) + lane % 4;
      if constexpr (Config::kRopeChunks > 0) {
        place.rope[side] =
            reinterpret_cast<const uint4*>(sm90::query_rope_row<Element>(query, tile, read)) + lane % 4;
      }
    }
    return place;
  }

  /// Starts the loads; arrange() must come before the values are used.
  __device__ __forceinline__ void load(const Place& place, int half) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint4* rope = place.rope[side] + 4 * half;
      const uint4* v = place.rows[side] + half * Strips<Config>::kHalfChunks * 8;
#pragma unroll
      for (int i = 0; i < Strips<Config>::kCount; ++i) {
        const uint4 value = i < Strips<Config>::kRope ? __ldg(rope + i * 8 / Strips<Config>::kAChunk)
                                                      : __ldg(v + (i - Strips<Config>::kRope) * 4);
        std::uint32_t(&a)[4] = a_[i][side];
        a[0] = value.x;
        a[1] = value.y;
        a[2] = value.z;
        a[3] = value.w;
      }
    }
  }

  /// Turns two rows' 16 bytes into operands, each half of both. `zero` is 0, which the assembler must not
  /// know: it would undo this copy and copy before each product instead, with four times as many
  /// instructions.
  __device__ __forceinline__ void arrange(std::uint32_t zero) {
#pragma unroll
    for (auto& strip : a_) {
      std::uint32_t(&low)[4] = strip[0], (&high)[4] = strip[1];
      const std::uint32_t first[4] = {low[0], high[0], low[1], high[1]};
      const std::uint32_t second[4] = {low[2], high[2], low[3], high[3]};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        low[i] = first[i] ^ zero;
        high[i] = second[i] ^ zero;
      }
    }
  }

  /// even + odd += the product with the i-th strip of eight tokens; `k` is this lane's share. Two sums, so
  /// that no product waits for the previous one.
  __device__ __forceinline__ void multiply(float (&even)[4], float (&odd)[4], int i, uint4 k) const {
    ptx::mma<Element>(even, a_[i][0], k.x, k.y);
    ptx::mma<Element>(odd, a_[i][1], k.z, k.w);
  }

 private:
  std::uint32_t a_[Strips<Config>::kCount][2][4];  // steps, registers
};

}  // namespace flashlatent::mla_16
