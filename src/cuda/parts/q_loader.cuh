// Query rows into swizzled tiles, and one chunk of 64 columns into registers.
#pragma once

#include <cuda_runtime.h>

#include "cuda/parts/arguments.cuh"
#include "cuda/parts/tile.cuh"
#include "cuda/ptx/barrier.cuh"

namespace flashlatent::parts {

template <class Element>
__device__ __forceinline__ const Element* query_row(const QueryArguments& query, const RowTile& tile,
                                                    int row) {
  return static_cast<const Element*>(query.data) + tile.request * query.batch_stride +
         tile.token(query, row) * query.token_stride + tile.head(query, row) * query.head_stride;
}

/// Columns [0, 64 * kChunks) of the tile's kRows rows into swizzled tiles of kRows x 64, one after another;
/// rows past the last live one become 0. Called by `kThreads` threads, which must then meet at a barrier
/// before wgmma reads (the fence is here).
template <class Element, int kRows, int kChunks, int kThreads>
__device__ __forceinline__ void load_query(std::uint8_t* tiles, const QueryArguments& query,
                                           const RowTile& tile, int thread) {
  constexpr int kRowUnits = kChunks * 8;  // of 16 bytes
  constexpr int kUnits = kRows * kRowUnits;
  constexpr int kInFlight = 8;
#pragma unroll 1
  for (int first = thread; first < kUnits; first += kInFlight * kThreads) {
    uint4 values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int index = first + i * kThreads;
      const int row = index / kRowUnits;
      values[i] = make_uint4(0, 0, 0, 0);
      if (index < kUnits && row < tile.rows) {
        values[i] =
            __ldg(reinterpret_cast<const uint4*>(query_row<Element>(query, tile, row)) + index % kRowUnits);
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int index = first + i * kThreads;
      if (index >= kUnits) break;
      const int row = index / kRowUnits;
      const int unit = index % kRowUnits;
      *reinterpret_cast<uint4*>(tiles + unit / 8 * kRows * kRowBytes + unit_offset(row, unit % 8)) =
          values[i];
    }
  }
  ptx::fence_for_async_proxy();
}

/// Columns [64 * kChunk, 64 * kChunk + 64) as wgmma's A operand: for each 16 columns, pairs at (row, column),
/// (row + 8, column), (row, column + 8), (row + 8, column + 8).
template <class Element, int kChunk>
__device__ __forceinline__ void load_query_fragment(std::uint32_t (&a)[4][4], const QueryArguments& query,
                                                    const RowTile& tile, Fragment fragment) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = fragment.row + 8 * half;
    const Element* source = query_row<Element>(query, tile, row < tile.rows ? row : 0) + kChunk * 64;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const int column = 16 * k + 8 * right + fragment.column;
        a[k][half + 2 * right] =
            row < tile.rows ? __ldg(reinterpret_cast<const std::uint32_t*>(source + column)) : 0;
      }
    }
  }
}

}  // namespace flashlatent::parts
