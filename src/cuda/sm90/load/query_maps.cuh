// Query rows by boxes.
#pragma once

#include "core/query_columns.h"
#include "cuda/sm90/load/query_maps.h"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::sm90 {

template <int kColumns>
__device__ __forceinline__ void prefetch_query_maps(const QueryMaps& maps) {
  ptx::prefetch_map(maps.first);
  if constexpr (query_parts::has_rope(kColumns)) ptx::prefetch_map(maps.rope);
}

/// Chunk number `chunk` of 64 columns of a part, by a box of query_rows_map(). By one thread.
__device__ __forceinline__ void copy_query_rows(void* tile, const CUtensorMap& map, int chunk,
                                                const QueryArguments& query, const RowsInLine& rows,
                                                ptx::Barrier& full) {
  ptx::copy_box(tile, map, chunk * 64, query.line.remainder(rows.first), query.line.quotient(rows.first),
                rows.request, full);
}

/// All columns of rows of a line, by a box of query_chunks_map() for each part, into consecutive tiles of 64
/// columns. By one thread.
template <int kColumns, class Tile>
__device__ __forceinline__ void copy_query_chunks(Tile* tiles, const QueryMaps& maps, int row, int line,
                                                  int request, ptx::Barrier& full) {
  ptx::copy_box(tiles, maps.first, 0, row, line, 0, request, full);
  if constexpr (query_parts::has_rope(kColumns)) {
    constexpr int kFirst = query_parts::first_columns(kColumns) / 64;
    ptx::copy_box(tiles + kFirst, maps.rope, 0, row, line, 0, request, full);
  }
}
template <int kColumns, class Tile>
__device__ __forceinline__ void copy_query_chunks(Tile* tiles, const QueryMaps& maps,
                                                  const QueryArguments& query, const RowsInLine& rows,
                                                  ptx::Barrier& full) {
  copy_query_chunks<kColumns>(tiles, maps, query.line.remainder(rows.first), query.line.quotient(rows.first),
                              rows.request, full);
}

}  // namespace flashlatent::sm90
