// Every byte of shared memory of the 64-row kernel for records, once.
#pragma once

#include <type_traits>

#include "cuda/sm90/kernels/fp8/few_rows_smem.cuh"
#include "cuda/sm90/kernels/fp8/record_copies.cuh"
#include "cuda/sm90/kernels/fp8/records64_config.h"
#include "cuda/sm90/kernels/fp8/records_smem.cuh"
#include "cuda/sm90/load/query_edge.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::fp8::records64 {

/// A row's places in the results (null: no such row), what its sums are multiplied by, and its sink.
struct Row {
  __nv_bfloat16* out;
  float* lse;
  float factor, sink;
};

/// The scorer's next Q.
struct NextQuery {
  sm90::RowsInLine next_query;  // loaded when the present one is done; of no request: there is none
  ptx::Barrier first_query;     // the call's first Q has come from memory; has one phase
};

/// Additions for the edges of the layer. The scorer finds an item's angles when it takes Q, up to two items
/// before the outputs are turned by them.
struct LayerEdges {
  static constexpr int kItems = 4;  // a power of two

  sm90::QueryEdge<mxfp8_528::kDim / 64>::Memory query;
  sm90::Angles output[kItems];
};
struct NoEdges {};

template <class Config_>
struct alignas(1024) SharedMemory {
  using Config = Config_;

  std::uint8_t q[Config::kQueryTiles][Config::kTileBytes];  // fp16
  records::SliceOfValues<Config> values[Config::kSlicePlaces];
  std::uint8_t p[Config::kPlaces][Config::kTileBytes];  // P of a block, times units
  alignas(16)
      std::uint8_t stages[Config::kScorers][4][Config::kWarpStages][Config::kStageBytes];  // as in the cache
  Held held[Config::kScorers][4][Config::kWarpStages];
  RecordPlaces places[4];  // of loading warps
  float warp_max[4][Config::kRows];
  float base[Config::kRows];                     // -inf: no base yet
  float finite_base[Config::kRows];              // subtracted from scores
  float factor[Config::kPlaces][Config::kRows];  // of sums and outputs, for the block
  int shrinks[Config::kPlaces];                  // are sums so far rescaled for the block?
  float warp_sum[4][Config::kRows];
  Row rows[Config::kRows];
  int query_max[Config::kComputeGroups * 4];  // of each warp
  ptx::Barrier full[Config::kScorers][4][Config::kWarpStages];
  ptx::Barrier empty[Config::kScorers][4][Config::kWarpStages];
  ptx::Barrier has_p[Config::kPlaces];      // values, P and statistics are ready
  ptx::Barrier calm;                        // a block's scores are there: tensor cores have less to do
  ptx::Barrier finished, rows_read;         // of an item: what rows end with is there; has been read
  ptx::Barrier free[Config::kSlicePlaces];  // an output warpgroup has read the slice
  ptx::Barrier has_query;                   // Q has come from memory
  NextQuery lists;
  sm90::WorkQueue segments;
  few_rows::WalkMemory<Config> walks;
  [[no_unique_address]] std::conditional_t<Config::kEdges, LayerEdges, NoEdges> edges;

  /// What the loader by lists waits for after its first block.
  __device__ __forceinline__ ptx::Barrier& first_query() { return lists.first_query; }
};

}  // namespace flashlatent::fp8::records64
