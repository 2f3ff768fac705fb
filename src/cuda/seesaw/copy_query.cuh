// Query rows by boxes.
#pragma once

#include "cuda/parts/row_tile.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/seesaw/smem_layout.cuh"

namespace flashlatent::seesaw {

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

}  // namespace flashlatent::seesaw
