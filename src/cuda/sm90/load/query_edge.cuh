// The edge of the layer at the query: a tile of 64 rows that lies in shared memory as it is in memory is
// normalised and rotated there, as cuda/ops/edges.cu does it. The same operations in the same order: a lane
// of the warp that has a row there has every 32nd word of eight columns.
//
// Rows are of one query token. A thread has half of a row, every other unit of 16 bytes; of the last 64
// columns, which are rotated, the first or last four units (`Config::kRope`: their tile). It writes no other
// units, so that it may go on with its own ones alone.
#pragma once

#include <cuda_bf16.h>

#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/rotated_pairs.cuh"

namespace flashlatent::sm90 {

/// 16 bytes of bf16 in fp32, and back.
__device__ __forceinline__ void widen_word(const uint4& word, float (&x)[8]) {
  const std::uint32_t pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(pairs[i] << 16);
    x[2 * i + 1] = __uint_as_float(pairs[i] & 0xFFFF0000U);
  }
}
__device__ __forceinline__ uint4 round_word(const float (&x)[8]) {
  return make_uint4(pack<__nv_bfloat16>(x[0], x[1]), pack<__nv_bfloat16>(x[2], x[3]),
                    pack<__nv_bfloat16>(x[4], x[5]), pack<__nv_bfloat16>(x[6], x[7]));
}
/// Turns four pairs.
__device__ __forceinline__ void turn_word(float (&x)[8], const edges::Angle* angles) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = turned(x[2 * i], x[2 * i + 1], angles[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

/// The same row by row, by warps that have a row each: the work of few rows is spread over all of them.
class QueryRowEdge {
  static constexpr int kLanes = 32, kTurningLanes = kRotatedColumns / 8;

 public:
  /// Loads the angles of a query token's position; by lanes that turn no columns nothing.
  __device__ __forceinline__ QueryRowEdge(const EdgeArguments& edges, std::int64_t position)
      : edges_(edges), lane_(threadIdx.x % kLanes) {
    if (!turns()) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      angles_[i] = edges.query.angle(position, (lane_ - (kLanes - kTurningLanes)) * 4 + i);
    }
  }

  /// Rows of 512 columns, of which this lane has words `lane` and lane + 32. Several rows at once: of one row
  /// a warp mostly waits.
  template <int kRows>
  __device__ __forceinline__ void apply(uint4 (&words)[kRows][2]) const {
    float x[kRows][2][8];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      widen_word(words[row][0], x[row][0]);
      widen_word(words[row][1], x[row][1]);
    }
    if (edges_.norm > 0) {
      float squares[kRows] = {};
#pragma unroll
      for (int i = 0; i < 16; ++i) {
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          const float value = x[row][i / 8][i % 8];
          squares[row] = edges::sum(squares[row], edges::product(value, value));
        }
      }
#pragma unroll
      for (int apart = kLanes / 2; apart > 0; apart /= 2) {
#pragma unroll
        for (float& sum : squares) sum = edges::sum(sum, __shfl_xor_sync(0xffffffff, sum, apart));
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float factor =
            edges::norm_factor_of_mean(edges::product(squares[row], 1.0F / kColumns), edges_.norm);
#pragma unroll
        for (auto& word : x[row]) {
#pragma unroll
          for (float& value : word) value = edges::product(value, factor);
        }
      }
    }
    if (turns()) {
#pragma unroll
      for (auto& row : x) turn_word(row[1], angles_);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      words[row][0] = round_word(x[row][0]);
      words[row][1] = round_word(x[row][1]);
    }
  }

  /// Rows `row` and row + apart in tiles of 64 rows, the first of them at `tiles`.
  __device__ __forceinline__ void prepare(std::uint32_t tiles, int row, int apart) const {
    uint4 words[2][2];
    std::uint32_t at[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      at[i / 2][i % 2] =
          tiles + (lane_ / 8 + i % 2 * 4) * kTileBytes + unit_offset(row + i / 2 * apart, lane_ % 8);
      words[i / 2][i % 2] = ptx::load_shared_16_bytes(at[i / 2][i % 2]);
    }
    apply(words);
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::store_16_bytes(at[i / 2][i % 2], words[i / 2][i % 2]);
  }

 private:
  static constexpr int kColumns = 512;
  static constexpr std::uint32_t kTileBytes = kTileRows * kRowBytes;

  __device__ __forceinline__ bool turns() const {
    return edges_.query.positions != nullptr && lane_ >= kLanes - kTurningLanes;
  }

  const EdgeArguments& edges_;
  const int lane_;
  edges::Angle angles_[4];
};

/// Turns the last columns of rows in a tile of 64 rows, to which nothing else is done. kThreads threads have
/// eight columns of a row each.
template <int kThreads>
class RowTurner {
  static constexpr int kUnits = kRotatedColumns / 8;  // of a row

 public:
  /// Of `rows` rows. Loads the angles of a query token's position, by threads that have a row.
  __device__ __forceinline__ RowTurner(const edges::Rotary& rotary, std::int64_t position, int rows)
      : rows_(rows) {
    if (first_row() >= rows) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) angles_[i] = rotary.angle(position, unit() * 4 + i);
  }

  /// `tile`: the address of the rows' last columns.
  __device__ __forceinline__ void turn(std::uint32_t tile) const {
#pragma unroll 1
    for (int row = first_row(); row < rows_; row += kThreads / kUnits) {
      const std::uint32_t at = tile + unit_offset(row, unit());
      float x[8];
      widen_word(ptx::load_shared_16_bytes(at), x);
      turn_word(x, angles_);
      ptx::store_16_bytes(at, round_word(x));
    }
  }

 private:
  __device__ __forceinline__ static int unit() {
    return static_cast<int>(threadIdx.x) % kUnits;
  }
  __device__ __forceinline__ static int first_row() {
    return static_cast<int>(threadIdx.x) / kUnits;
  }

  const int rows_;
  edges::Angle angles_[4];
};

template <int kTiles>
class QueryEdge {
  static constexpr int kRows = kTileRows, kColumns = kTiles * 64, kRope = kTiles - 1;
  static_assert(kTiles == 8);

 public:
  /// In shared memory: what both threads of a row exchange.
  struct Memory {
    float squares[2][kRows];
    Angles angles;
  };

  /// `thread`: of 128. `tiles`: the address of the first one.
  __device__ __forceinline__ QueryEdge(Memory& memory, std::uint32_t tiles, int thread)
      : memory_(memory), tiles_(tiles), row_(thread % kRows), half_(thread / kRows) {}

  /// Adds up the row's squares, half of them, and publishes the sum.
  __device__ __forceinline__ void add_squares() const {
    // Tiles 0, 2, 1, 3, each with the one four later: sums of the first two and of the last two are added.
    float of_unit[4] = {}, before[4] = {};
#pragma unroll 1
    for (int i = 0; i < kTiles / 2; ++i) {
      float sums[4] = {};
#pragma unroll
      for (int later = 0; later < kTiles; later += kTiles / 2) {
#pragma unroll
        for (int unit = 0; unit < 4; ++unit) {
          float x[8];
          load(i % 2 * 2 + i / 2 + later, 2 * unit + half_, x);
#pragma unroll
          for (const float value : x) sums[unit] = edges::sum(sums[unit], edges::product(value, value));
        }
      }
#pragma unroll
      for (int unit = 0; unit < 4; ++unit) {
        if (i % 2 == 0) {
          before[unit] = sums[unit];
        } else {
          of_unit[unit] = edges::sum(of_unit[unit], edges::sum(before[unit], sums[unit]));
        }
      }
    }
    memory_.squares[half_][row_] =
        edges::sum(edges::sum(of_unit[0], of_unit[2]), edges::sum(of_unit[1], of_unit[3]));
  }

  /// The norm's factor of the row, when both threads have passed add_squares(); 1 if epsilon is 0.
  __device__ __forceinline__ float factor(float epsilon) const {
    if (epsilon == 0) return 1;
    const float squares = edges::sum(memory_.squares[0][row_], memory_.squares[1][row_]);
    return edges::norm_factor_of_mean(edges::product(squares, 1.0F / kColumns), epsilon);
  }
  /// Eight columns of the row; `angles`: of their pairs, null if they are not turned.
  __device__ __forceinline__ static uint4 prepared(const uint4& word, float factor,
                                                   const edges::Angle* angles) {
    float x[8];
    widen_word(word, x);
#pragma unroll
    for (float& value : x) value = edges::product(value, factor);
    if (angles != nullptr) turn_word(x, angles);
    return round_word(x);
  }

  /// Multiplies by the norm's factor, unless epsilon is 0, and turns the last columns. Call when both threads
  /// of a row have passed add_squares(), and angles are there.
  __device__ __forceinline__ void apply(float epsilon, bool turns) const {
    const float factor = this->factor(epsilon);
    if (epsilon > 0) {
#pragma unroll 1
      for (int tile = 0; tile < kRope; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) put(tile, 2 * i + half_, factor, nullptr);
      }
    }
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const int unit = 4 * half_ + i;
      put(kRope, unit, factor, turns ? memory_.angles + unit * 4 : nullptr);
    }
  }

 private:
  __device__ __forceinline__ std::uint32_t address(int tile, int unit) const {
    return tiles_ + tile * (kRows * kRowBytes) + unit_offset(row_, unit);
  }
  __device__ __forceinline__ void load(int tile, int unit, float (&x)[8]) const {
    widen_word(ptx::load_shared_16_bytes(address(tile, unit)), x);
  }
  __device__ __forceinline__ void put(int tile, int unit, float factor, const edges::Angle* angles) const {
    const std::uint32_t at = address(tile, unit);
    ptx::store_16_bytes(at, prepared(ptx::load_shared_16_bytes(at), factor, angles));
  }

  Memory& memory_;
  const std::uint32_t tiles_;
  const int row_, half_;
};

}  // namespace flashlatent::sm90
