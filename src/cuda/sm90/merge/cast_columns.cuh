// The edge of the layer at the output: casts O^T at an item's end to e4m3, with a scale for 128 columns of a
// row. A warpgroup has half of the output's columns, laid out as for column_output.cuh.
#pragma once

#include <cuda_fp8.h>

#include "core/rotation.h"
#include "cuda/sm90/math/column_exchange.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/ptx/store.cuh"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::sm90 {

/// The group, and the first column in it, of a row's codes.
struct CodePlace {
  int group, column;

  template <int kVDim>
  __device__ __forceinline__ static CodePlace find(const EdgeArguments& edges, int head) {
    return {edges.group_heads.quotient(head), edges.group_heads.remainder(head) * kVDim};
  }
};

/// The number of a tile's query token among all of the call.
__device__ __forceinline__ std::int64_t query_token(const DecodeArguments& args, const RowTile& tile) {
  return std::int64_t{tile.request} * args.sharers.value + tile.first_token;
}

/// The address of a live row's codes.
template <int kVDim>
__device__ __forceinline__ std::uint8_t* codes_of_row(const DecodeArguments& args, const RowTile& tile,
                                                      int n) {
  const EdgeArguments& edges = args.edges;
  const CodePlace place = CodePlace::find<kVDim>(edges, tile.head(args.query, n));
  return edges.codes + query_token(args, tile) * edges.code_token_stride +
         place.group * edges.code_group_stride + place.column;
}

/// x * 0 + x is NaN for x that is not finite, and fmaxf ignores NaN.
__device__ __forceinline__ float finite_or_nan(float x) {
  return fmaf(x, 0.0F, x);
}
__device__ __forceinline__ std::uint32_t code_pair(float x, float y) {
  return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
}
/// Codes of two values times `factor`; NaN for values that are not finite.
__device__ __forceinline__ std::uint32_t codes_of(float x, float y, float factor) {
  return code_pair(finite_or_nan(x) * factor, finite_or_nan(y) * factor);
}
/// Writes the scale of a line of 128 columns; behind the last token it clears the padding.
__device__ __forceinline__ void put_scale(const EdgeArguments& to, float* line, std::int64_t token,
                                          int exponent) {
  line[token] = e4m3::power_of_two(exponent);
  if (token + 1 != to.tokens) return;
  for (std::int64_t i = to.tokens; i < to.padded_tokens; ++i) line[i] = 0;
}

/// `Threads`, kBarrier: as for HalvesOfColumns.
template <class Threads, int kBarrier, int kChunks, int kSums>
class CastColumns {
  static constexpr int kRows = 2 * kSums, kVDim = 2 * 64 * kChunks, kParts = kChunks / 2;
  static_assert(kChunks % 2 == 0, "a scale's columns are two chunks");
  using Columns = ColumnValues<kRows>;
  using Accumulators = float[kChunks][kSums];

 public:
  /// Shared memory of both halves, for each 128 columns of a row: the largest magnitude that each warp has,
  /// and what sums are multiplied by.
  struct Memory {
    float largest[2][kParts][4][kRows];
    float factor[2][kParts][kRows];
  };

  __device__ __forceinline__ CastColumns(const Accumulators& o, int half, Memory& memory)
      : o_(o), half_(half), memory_(memory) {}

  /// `factor`: the final factor of each row's sums. `codes(i, n)`: the address of the codes of row n, this
  /// thread's i-th; null: no such row. `first`: this thread's first column; `last`: by how many columns it
  /// differs in the last chunk.
  template <class Codes>
  __device__ __forceinline__ void write(const DecodeArguments& args, const RowTile& tile,
                                        const float (&factor)[kRows], Codes codes, int first,
                                        int last) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) put_largest(part);
    meet();
#pragma unroll 1
    for (int i = Threads::thread(); i < kParts * kRows; i += 128) {
      scale_row(args, tile, i / kRows, i % kRows, factor);
    }
    meet();
    put_codes(codes, first, last);
  }

 private:
  __device__ __forceinline__ void meet() const {
    ptx::named_sync(kBarrier + half_, 128);
  }

  __device__ __forceinline__ void put_largest(int part) const {
    Columns largest;
#pragma unroll
    for (int i = 0; i < Columns::kCount; ++i) {
      largest[i] = 0;
#pragma unroll
      for (int chunk = 2 * part; chunk < 2 * part + 2; ++chunk) {
        const float* x = &o_[chunk][i / 2 * 4 + i % 2];
        largest[i] = fmaxf(largest[i], fmaxf(fabsf(finite_or_nan(x[0])), fabsf(finite_or_nan(x[2]))));
      }
    }
    const int lane = Threads::thread() % 32;
    *reinterpret_cast<float2*>(
        &memory_.largest[half_][part][Threads::thread() / 32][first_of_lane<kRows>(lane)]) =
        over_tokens<kRows>(largest, lane, [](float a, float b) { return fmaxf(a, b); });
  }

  /// Writes the scale of 128 columns of row n; behind the last token it clears the padding.
  __device__ __forceinline__ void scale_row(const DecodeArguments& args, const RowTile& tile, int part, int n,
                                            const float (&factor)[kRows]) const {
    const auto& of_warp = memory_.largest[half_][part];
    const float largest = fmaxf(fmaxf(of_warp[0][n], of_warp[1][n]), fmaxf(of_warp[2][n], of_warp[3][n]));
    // A row whose factor is NaN has no finite value.
    const int exponent = edges::output_exponent(fmaxf(edges::product(largest, factor[n]), 0.0F));
    memory_.factor[half_][part][n] = factor[n] * e4m3::power_of_two(-exponent);
    if (n >= tile.rows) return;
    const EdgeArguments& to = args.edges;
    const CodePlace place = CodePlace::find<kVDim>(to, tile.head(args.query, n));
    const int column = place.column + (half_ * kParts + part) * edges::kScaleColumns;
    const std::int64_t token = query_token(args, tile);
    float* scales = to.scales + (std::int64_t{place.group} * to.scale_lines + column / edges::kScaleColumns) *
                                    to.padded_tokens;
    put_scale(to, scales, token, exponent);
  }

  /// As many rows at once as registers allow.
  template <class Codes>
  __device__ __forceinline__ void put_codes(Codes codes, int first, int last) const {
    constexpr int kCount = Columns::kCount, kAtOnce = 2;
#pragma unroll
    for (int begin = 0; begin < kCount; begin += kAtOnce) {
      std::uint8_t* to[kAtOnce];
      float2 factors[kParts];
      const int row = begin / 2 * 8 + Threads::column();
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) to[k] = codes(begin + k, row + k);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        factors[part] = *reinterpret_cast<const float2*>(&memory_.factor[half_][part][row]);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const float factor = k == 0 ? factors[chunk / 2].x : factors[chunk / 2].y;
          const float* x = &o_[chunk][(begin + k) / 2 * 4 + k];
          ptx::store_2_bytes_if(to[k] != nullptr,
                                to[k] + first + chunk * 64 + (chunk == kChunks - 1 ? last : 0),
                                static_cast<std::uint16_t>(codes_of(x[0], x[2], factor)));
        }
      }
    }
  }

  const Accumulators& o_;
  const int half_;
  Memory& memory_;
};

/// Scales of O^T whose codes go to memory through shared memory; kShares warpgroups share the output's
/// columns. Rows that have values that are not finite are rare, and leave them out in a second pass.
template <class Threads, int kBarrier, int kChunks, int kRows, int kShares>
class ScaledColumns {
 protected:
  static constexpr int kVDim = kShares * 64 * kChunks, kParts = kChunks / 2;
  static_assert(kChunks % 2 == 0, "a scale's columns are two chunks");
  static_assert(kParts * kRows <= 128, "a thread has 128 columns of a row at most");
  using Columns = ColumnValues<kRows>;
  using Accumulators = float[kChunks][kRows / 2];

 public:
  /// In shared memory, of a warpgroup: the largest magnitude that each warp has of 128 columns of a row, and
  /// what sums are multiplied by.
  using Largest = float[kParts][4][kRows];
  using Factors = float[kParts][kRows];

 protected:
  __device__ __forceinline__ ScaledColumns(Accumulators& o, int share, Largest& largest, Factors& factors)
      : o_(o), share_(share), largest_(largest), factors_(factors) {}

  __device__ __forceinline__ void meet() const { ptx::named_sync(kBarrier + share_, 128); }

  /// Finds largest magnitudes by warp.
  __device__ __forceinline__ void measure() const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Columns largest;
#pragma unroll
      for (int i = 0; i < Columns::kCount; ++i) {
        const float* x = &o_[2 * part][i / 2 * 4 + i % 2];
        const float* y = &o_[2 * part + 1][i / 2 * 4 + i % 2];
        largest[i] = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[2])), fmaxf(fabsf(y[0]), fabsf(y[2])));
      }
      const int lane = Threads::thread() % 32;
      *reinterpret_cast<float2*>(&largest_[part][Threads::thread() / 32][first_of_lane<kRows>(lane)]) =
          over_tokens<kRows>(largest, lane, [](float a, float b) { return fmaxf(a, b); });
    }
  }

  /// Writes scales, once all have met after measure(). `factor`: the final factor of each row's sums.
  __device__ __forceinline__ void scale(const DecodeArguments& args, const RowTile& tile,
                                        const float (&factor)[kRows]) {
    const bool odd = scale_row(args, tile, factor, false);
    if (ptx::named_any(kBarrier + share_, 128, odd)) [[unlikely]] {
#pragma unroll
      for (auto& chunk : o_) {
#pragma unroll
        for (float& x : chunk) x = finite_or_nan(x);
      }
      measure();
      meet();
      scale_row(args, tile, factor, true);
      meet();
    }
  }

  Accumulators& o_;
  const int share_;
  Largest& largest_;
  Factors& factors_;

 private:
  /// Writes the scale of 128 columns of a row. Is one of them infinite? Not `last`: then nothing is written.
  __device__ __forceinline__ bool scale_row(const DecodeArguments& args, const RowTile& tile,
                                            const float (&factor)[kRows], bool last) const {
    if constexpr (kParts * kRows < 128) {
      if (Threads::thread() >= kParts * kRows) return false;
    }
    const int part = Threads::thread() / kRows, n = Threads::thread() % kRows;
    const auto& of_warp = largest_[part];
    // NaN is left out, as by the maxima before.
    const float largest =
        fmaxf(fmaxf(fmaxf(of_warp[0][n], of_warp[1][n]), fmaxf(of_warp[2][n], of_warp[3][n])), 0.0F);
    // A row whose factor is NaN has no finite value.
    const float amax = fmaxf(edges::product(largest, factor[n]), 0.0F);
    if (!(amax < INFINITY) && !last) return true;
    const int exponent = edges::output_exponent(amax);
    factors_[part][n] = factor[n] * e4m3::power_of_two(-exponent);
    if (n >= tile.rows) return false;
    const EdgeArguments& to = args.edges;
    const CodePlace place = CodePlace::find<kVDim>(to, tile.head(args.query, n));
    const int line = (place.column + (share_ * kParts + part) * edges::kScaleColumns) / edges::kScaleColumns;
    put_scale(to, to.scales + (std::int64_t{place.group} * to.scale_lines + line) * to.padded_tokens,
              query_token(args, tile), exponent);
    return false;
  }
};

/// The same of a tile of 64 rows: 128 bytes of a row go to memory together.
template <class Threads, int kBarrier, int kChunks>
class CastTile : ScaledColumns<Threads, kBarrier, kChunks, kTileRows, 2> {
  using Base = ScaledColumns<Threads, kBarrier, kChunks, kTileRows, 2>;
  using Base::kParts, Base::meet, Base::o_, Base::factors_;
  static constexpr int kRows = kTileRows;

 public:
  /// Shared memory of a warpgroup: largest magnitudes by warp, then codes of 128 columns.
  union alignas(1024) Room {
    typename Base::Largest largest;
    Tile codes;
  };
  using typename Base::Factors;

  __device__ __forceinline__ CastTile(typename Base::Accumulators& o, int half, Room& room, Factors& factors)
      : Base(o, half, room.largest, factors), room_(room) {}

  /// `factor`: the final factor of each row's sums. `codes`: the address of each row's codes; null: no such
  /// row. `apart`: the last chunk's columns of lanes come in the order 0, 4, 1, 5, ... of pairs.
  __device__ __forceinline__ void write(const DecodeArguments& args, const RowTile& tile,
                                        const float (&factor)[kRows], std::uint8_t* const (&codes)[kRows],
                                        bool apart) {
    this->measure();
    meet();
    this->scale(args, tile, factor);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      stage(part);
      meet();
      copy(codes, part, apart);
      if (part + 1 < kParts) meet();
    }
  }

 private:
  /// Stores codes of 128 columns as a tile of rows.
  __device__ __forceinline__ void stage(int part) const {
    const int thread = Threads::thread(), lane = thread % 32;
#pragma unroll
    for (int j = 0; j < kRows / 8; j += 4) {
      float2 factors[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        factors[k] = *reinterpret_cast<const float2*>(&factors_[part][8 * (j + k) + lane % 4 * 2]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        std::uint32_t rows[4];  // two rows' pairs in a word
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float* x = &o_[2 * part + i][4 * (j + k)];
          rows[k] = code_pair(x[0] * factors[k].x, x[2] * factors[k].x) |
                    code_pair(x[1] * factors[k].y, x[3] * factors[k].y) << 16;
        }
        ptx::store_matrices_transposed(ptx::shared_address(&room_.codes) +
                                           unit_offset(8 * (j + lane / 8) + lane % 8, 4 * i + thread / 32),
                                       rows);
      }
    }
  }

  /// From the tile to memory.
  __device__ __forceinline__ void copy(std::uint8_t* const (&codes)[kRows], int part, bool apart) const {
    const int unit = Threads::thread() % 8;
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const int row = i * 16 + Threads::thread() / 8;
      uint4 word = ptx::load_shared_16_bytes(ptx::shared_address(&room_.codes) + unit_offset(row, unit));
      if (part == kParts - 1 && apart && unit >= 4) {
        word = make_uint4(__byte_perm(word.x, word.y, 0x5410), __byte_perm(word.z, word.w, 0x5410),
                          __byte_perm(word.x, word.y, 0x7632), __byte_perm(word.z, word.w, 0x7632));
      }
      std::uint8_t* to = codes[row];
      if (to == nullptr) continue;
      *reinterpret_cast<uint4*>(to + (this->share_ * kParts + part) * edges::kScaleColumns + unit * 16) =
          word;
    }
  }

  Room& room_;
};

}  // namespace flashlatent::sm90
