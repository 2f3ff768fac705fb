// Every byte of shared memory of the kernel for records, once.
#pragma once

#include <type_traits>

#include "cuda/sm90/kernels/fp8/few_rows_smem.cuh"
#include "cuda/sm90/kernels/fp8/record_copies.cuh"
#include "cuda/sm90/kernels/fp8/records_config.h"
#include "cuda/sm90/math/tile.cuh"

namespace flashlatent::fp8::records {

template <class Config_>
struct alignas(1024) SharedMemory {
  using Config = Config_;

  sm90::Tile values[Config::kScorers][Config::kChunks];  // V of a scorer's block, fp16 in units of tokens
  std::uint8_t q[Config::kQueryTiles][Config::kTileBytes];  // fp16
  std::uint8_t p[Config::kScorers][Config::kTileBytes];     // P of a scorer's block, times units
  alignas(16) std::uint8_t stages[Config::kSlots][Config::kStageBytes];  // tokens as they are in the cache
  Held held[Config::kSlots];
  float warp_max[Config::kScorers][4][Config::kRows];
  float base[Config::kRows];                      // -inf: no base yet
  float finite_base[Config::kRows];               // subtracted from scores
  float factor[Config::kScorers][Config::kRows];  // of sums and outputs, for the block
  int shrinks[Config::kScorers];                  // are sums so far rescaled for the block?
  float warp_sum[Config::kScorers][4][Config::kRows];
  float row_factor[Config::kRows];
  few_rows::QueryRow row_query[Config::kRows];
  sm90::RowPlace<typename Config::Element> row_place[Config::kRows];
  int query_max[Config::kScorers * 4];  // of each warp
  ptx::Barrier full[Config::kSlots], empty[Config::kSlots];
  ptx::Barrier has_p[Config::kScorers];  // values, P and statistics are ready
  ptx::Barrier free[Config::kScorers][2];  // the first and the last half of the values' columns are read
  ptx::Barrier has_query;                  // the call's first Q has come from memory
  ptx::Barrier scorers_meet, all_meet;     // all_meet: with the output's warpgroup
  sm90::WorkQueue segments;
  few_rows::WalkMemory<Config> walks;

  /// What the loader by lists waits for after its first block.
  __device__ __forceinline__ ptx::Barrier& first_query() { return has_query; }
};

}  // namespace flashlatent::fp8::records
