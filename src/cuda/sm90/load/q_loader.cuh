// Loads query rows into swizzled tiles.
#pragma once

#include <cuda_runtime.h>

#include "core/query_columns.h"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::sm90 {

/// A row of one of the query's parts.
template <class Element>
__device__ __forceinline__ const Element* row_of_part(const QueryPart& part, const QueryArguments& query,
                                                      const RowTile& tile, int row) {
  return static_cast<const Element*>(part.data) + tile.origin * part.batch_stride +
         tile.token(query, row) * part.token_stride + tile.head(query, row) * part.head_stride;
}
template <class Element>
__device__ __forceinline__ const Element* query_row(const QueryArguments& query, const RowTile& tile,
                                                    int row) {
  return row_of_part<Element>(query.first, query, tile, row);
}
/// Its RoPE columns.
template <class Element>
__device__ __forceinline__ const Element* query_rope_row(const QueryArguments& query, const RowTile& tile,
                                                         int row) {
  return row_of_part<Element>(query.rope, query, tile, row);
}

/// The row's 16-byte unit number `unit`, of either part. kColumns: of the row.
template <class Element, int kColumns>
__device__ __forceinline__ const uint4* query_unit(const QueryArguments& query, const RowTile& tile, int row,
                                                   int unit) {
  constexpr int kFirst = query_parts::first_columns(kColumns) * static_cast<int>(sizeof(Element)) / 16;
  const bool is_rope = query_parts::has_rope(kColumns) && unit >= kFirst;
  const QueryPart& part = is_rope ? query.rope : query.first;
  return reinterpret_cast<const uint4*>(row_of_part<Element>(part, query, tile, row)) +
         (is_rope ? unit - kFirst : unit);
}

/// Loads all kChunks chunks of 64 columns of the tile's kRows rows into consecutive swizzled tiles of kRows x
/// 64. Rows past the last live one become 0. Called by kThreads threads, which must meet at a barrier before
/// wgmma reads (the fence is here).
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
        values[i] = __ldg(query_unit<Element, kChunks * 64>(query, tile, row, index % kRowUnits));
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

}  // namespace flashlatent::sm90
