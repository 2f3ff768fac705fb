// Every byte of shared memory of the kernel for records, once.
#pragma once

#include <type_traits>

#include "cuda/sm90/kernels/fp8/few_rows_smem.cuh"
#include "cuda/sm90/kernels/fp8/record_copies.cuh"
#include "cuda/sm90/kernels/fp8/records_cast.cuh"
#include "cuda/sm90/kernels/fp8/records_config.h"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/walk/rotated_pairs.cuh"

namespace flashlatent::fp8::records {

/// A slice of the columns of a block's values, fp16 in units of tokens.
template <class Config>
struct SliceOfValues {
  sm90::Tile chunks[Config::kChunks / Config::kSlices];
};

/// A thread of the output's warpgroup.
struct OutputThread {
  __device__ __forceinline__ static int thread() { return threadIdx.x % 128; }
  __device__ __forceinline__ static int column() { return sm90::fragment_of(thread()).column; }
};
inline constexpr int kOutputBarrier = 3;  // a named one
template <class Config>
using OutputCast = Cast<Config, OutputThread, kOutputBarrier>;

/// Additions for the edges of the layer.
template <class Config>
struct LayerEdges {
  int request, token;   // of the item
  sm90::Angles output;  // by which it is turned back
  typename OutputCast<Config>::Memory cast;
};
struct NoEdges {};

template <class Config_>
struct alignas(1024) SharedMemory {
  using Config = Config_;

  SliceOfValues<Config> values[Config::kSlicePlaces];
  std::uint8_t q[Config::kQueryTiles][Config::kTileBytes];  // fp16
  std::uint8_t p[Config::kScorers][Config::kTileBytes];     // P of a scorer's block, times units
  alignas(16)
      std::uint8_t stages[Config::kScorers][4][Config::kWarpStages][Config::kStageBytes];  // as in the cache
  Held held[Config::kScorers][4][Config::kWarpStages];
  RecordPlaces places[4];  // of loading warps
  alignas(16) float warp_max[Config::kScorers][4][Config::kRows];
  float base[Config::kRows];                      // -inf: no base yet
  float finite_base[Config::kRows];               // subtracted from scores
  float factor[Config::kScorers][Config::kRows];  // of sums and outputs, for the block
  int shrinks[Config::kScorers];                  // are sums so far rescaled for the block?
  float warp_sum[Config::kScorers][4][Config::kRows];
  float row_factor[Config::kRows];
  few_rows::QueryRow row_query[Config::kRows];
  sm90::RowPlace<typename Config::Element> row_place[Config::kRows];
  int query_max[Config::kScorers * 4];  // of each warp
  ptx::Barrier full[Config::kScorers][4][Config::kWarpStages];
  ptx::Barrier empty[Config::kScorers][4][Config::kWarpStages];
  ptx::Barrier has_p[Config::kScorers];     // values, P and statistics are ready
  ptx::Barrier free[Config::kSlicePlaces];  // the output's warpgroup has read the slice
  ptx::Barrier has_query;                   // the call's first Q has come from memory
  ptx::Barrier scorers_meet, all_meet;      // all_meet: with the output's warpgroup
  sm90::WorkQueue segments;
  few_rows::WalkMemory<Config> walks;
  [[no_unique_address]] std::conditional_t<Config::kEdges, LayerEdges<Config>, NoEdges> edges;

  /// What the loader by lists waits for after its first block.
  __device__ __forceinline__ ptx::Barrier& first_query() { return has_query; }
};

}  // namespace flashlatent::fp8::records
