// Query rows by boxes.
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/smem_layout.cuh"
#include "cuda/sm90/load/query_maps.cuh"

namespace flashlatent::mla_64_pingpong {

/// Q of a tile, by one thread.
template <class Config>
__device__ __forceinline__ void copy_query(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                           const sm90::QueryMaps& maps, const sm90::RowTile& tile) {
  constexpr int kFirst = query_parts::first_columns(Config::kQkDim) / 64;  // chunks
  ptx::arrive_expecting(shared.q_full, Config::kQkChunks * sizeof(sm90::Tile));
  const sm90::RowsInLine rows = tile.in_line<Config::kTokens>(args.query);
#pragma unroll 1
  for (int chunk = 0; chunk < kFirst; ++chunk) {
    sm90::copy_query_rows(&shared.q[chunk], maps.first, chunk, args.query, rows, shared.q_full);
  }
  if constexpr (kFirst < Config::kQkChunks) {
    sm90::copy_query_rows(&shared.q[kFirst], maps.rope, 0, args.query, rows, shared.q_full);
  }
}

}  // namespace flashlatent::mla_64_pingpong
