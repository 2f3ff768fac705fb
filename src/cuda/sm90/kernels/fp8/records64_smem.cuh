// Every byte of shared memory of the 64-row kernel for records, once.
#pragma once

#include <type_traits>

#include "cuda/sm90/kernels/fp8/few_rows_smem.cuh"
#include "cuda/sm90/kernels/fp8/record_copies.cuh"
#include "cuda/sm90/kernels/fp8/records64_config.h"
#include "cuda/sm90/kernels/fp8/records_smem.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/walk/rotated_pairs.cuh"

namespace flashlatent::fp8::records64 {

/// Scores of a block, to base 2, with the logarithms of the tokens' units: by query row, tokens of a row in
/// an order in which neither those who write nor those who read have bank conflicts.
struct Exponents {
  float of_row[64][64];
  float share[64];  // of each token: one over its unit

  /// Flips bits of a token's place in row `row`, of which it depends on the lowest three bits only.
  __device__ __forceinline__ static int flip(int row) { return (row + (row >> 2 & 1) & 3) * 8; }
};

/// Additions for the edges of the layer.
struct LayerEdges {
  int request, token;  // of the item
  sm90::Angles output;
};
struct NoEdges {};

template <class Config_>
struct alignas(1024) SharedMemory {
  using Config = Config_;

  std::uint8_t q[Config::kQueryTiles][Config::kTileBytes];  // fp16
  records::HalfOfValues values[Config::kHalves];
  Exponents exponents;
  alignas(16)
      std::uint8_t stages[Config::kScorers][4][Config::kWarpStages][Config::kStageBytes];  // as in the cache
  Held held[Config::kScorers][4][Config::kWarpStages];
  few_rows::QueryRow row_query[Config::kRows];
  sm90::RowPlace<typename Config::Element> row_place[Config::kRows];
  int query_max[Config::kComputeThreads / 32];  // of each warp
  ptx::Barrier full[Config::kScorers][4][Config::kWarpStages];
  ptx::Barrier empty[Config::kScorers][4][Config::kWarpStages];
  ptx::Barrier scored, read;           // exponents and values are there; the outputs have read exponents
  ptx::Barrier free[Config::kHalves];  // an output warpgroup has read the half
  ptx::Barrier has_query;              // the call's first Q has come from memory
  ptx::Barrier query_ready;            // the segment's Q, if it has blocks
  sm90::WorkQueue segments;
  few_rows::WalkMemory<Config> walks;
  [[no_unique_address]] std::conditional_t<Config::kEdges, LayerEdges, NoEdges> edges;

  /// What the loader by lists waits for after its first block.
  __device__ __forceinline__ ptx::Barrier& first_query() { return has_query; }
};

}  // namespace flashlatent::fp8::records64
