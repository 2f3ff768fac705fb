// Q of a segment, loaded through registers by the warpgroup that has its first block. Bulk copies would wait
// behind those of KV in the same queue (2.6 us were seen); these loads are under way while the other
// warpgroup still reads the previous Q.
#pragma once

#include "cuda/sm90/load/q_loader.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::mla_16_transposed {

/// A thread's values: the same 16-byte unit of every 64 columns, in one row of 16.
template <class Config>
class QueryShare {
 public:
  /// Does not wait for the values. Rows past the last live one are 0.
  __device__ __forceinline__ QueryShare(const sm90::QueryArguments& query, const sm90::RowTile& tile,
                                        int thread)
      : row_(thread / 8), unit_(thread % 8) {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      const int row = row_ + 16 * i;
      const int read = row < tile.rows ? row : 0;
      const auto* source =
          reinterpret_cast<const uint4*>(sm90::query_row<typename Config::Element>(query, tile, read));
      const auto* rope = kFirst < Config::kQkChunks
                             ? reinterpret_cast<const uint4*>(
                                   sm90::query_rope_row<typename Config::Element>(query, tile, read))
                             : nullptr;
#pragma unroll
      for (int chunk = 0; chunk < Config::kQkChunks; ++chunk) {
        values_[i][chunk] = make_uint4(0, 0, 0, 0);
        const uint4* from = chunk < kFirst ? source + chunk * 8 : rope + (chunk - kFirst) * 8;
        if (row < tile.rows) values_[i][chunk] = __ldg(from + unit_);
      }
    }
  }

  /// Stores to consecutive swizzled tiles of kRows x 64, for wgmma to read.
  __device__ __forceinline__ void store(std::uint8_t* q) const {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      const int row = row_ + 16 * i;
      if (row >= Config::kRows) break;
#pragma unroll
      for (int chunk = 0; chunk < Config::kQkChunks; ++chunk) {
        *reinterpret_cast<uint4*>(q + chunk * Config::kRows * sm90::kRowBytes +
                                  sm90::unit_offset(row, unit_)) = values_[i][chunk];
      }
    }
    ptx::fence_for_async_proxy();
  }

 private:
  static constexpr int kRowsAThread = (Config::kRows + 15) / 16;
  static constexpr int kFirst = query_parts::first_columns(Config::kQkChunks * 64) / 64;  // chunks

  const int row_, unit_;
  uint4 values_[kRowsAThread][Config::kQkChunks];
};

}  // namespace flashlatent::mla_16_transposed
