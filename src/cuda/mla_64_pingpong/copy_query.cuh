// Query rows by boxes.
#pragma once

#include "cuda/mla_64_pingpong/smem_layout.cuh"
#include "cuda/parts/row_tile.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::mla_64_pingpong {

/// Q of a tile whose rows are in line, by one thread.
template <class Config>
__device__ __forceinline__ void copy_query(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                           const CUtensorMap& map, const parts::RowTile& tile) {
  ptx::arrive_expecting(shared.q_full, Config::kQkChunks * sizeof(parts::Tile));
  const parts::RowsInLine rows = tile.in_line<Config::kTokens>(args.query);
#pragma unroll 1
  for (int chunk = 0; chunk < Config::kQkChunks; ++chunk) {
    ptx::copy_box(&shared.q[chunk], map, chunk * 64, rows.first, 0, rows.request, shared.q_full);
  }
}

}  // namespace flashlatent::mla_64_pingpong
