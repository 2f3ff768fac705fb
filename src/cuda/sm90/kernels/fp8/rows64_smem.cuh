// Every byte of shared memory of the 64-row kernel, once.
#pragma once

#include "cuda/sm90/kernels/fp8/rows64_config.h"
#include "cuda/sm90/kernels/fp8/scales_584.cuh"
#include "cuda/sm90/load/query_edge.cuh"
#include "cuda/sm90/load/rows_behind.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/merge/cast_columns.cuh"
#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/merge/team_unit.cuh"
#include "cuda/sm90/walk/listed_tokens.cuh"
#include "cuda/sm90/walk/segment_list.cuh"

namespace flashlatent::fp8::rows64 {

/// S^T of a block as exponents to base 2: 64 tokens of kRows query rows each. Eight rows swap places with
/// eight others from token to token, so that neither writes of fragments (Scorer::fragment()) nor reads of
/// rows have bank conflicts.
template <class Config>
struct Scores {
  float of_token[64][sm90::kTileRows];

  __device__ __forceinline__ static int place(int token, int row) {
    return row ^
           (Config::kArrangement != Arrangement::kOneByOne ? token % 4 : token % 2 * 2 + token / 4 % 2) * 8;
  }
};

/// For a block's tokens that have scales of their own: ratios of V's scales to the token's unit
/// (math/fp8_units.cuh), and the factor of a probability times its unit in the row's sum. RoPE's group has no
/// ratio where RoPE is value.
template <class Config>
struct alignas(16) TokenScales {
  std::uint16_t ratio[Config::kGroups][64];
  float share[64];
};

/// The place of a token's ratio among a group's.
template <class Config>
__device__ __forceinline__ int ratio_place(int token) {
  return Config::kUe8m0 ? ratio_place_584(token) : token;
}

/// Where RoPE is value: P without units in bf16, for its columns of V.
template <class Config>
struct PlainP {
  std::uint8_t p[Config::kTileBytes];
};
/// With two lists: a loading warp's, of the present segment and of the next one.
struct ListedRanges {
  sm90::ListedRange of[2];
};
struct LoadedLists {
  ListedRanges of_warp[4];
  float sink[sm90::kTileRows];  // of rows, if heads have sinks
  sm90::RowsInLine next_query;  // loaded when the present one is done; of no request: there is none
  ptx::Barrier first_query;     // the call's first Q has come from memory; has one phase
};
/// How a thread of the output warpgroups is told apart, called anew at each use: registers are short.
struct OutputThreads {
  __device__ __forceinline__ static int thread() {
    int thread = threadIdx.x % 128;
    asm volatile("" : "+r"(thread));
    return thread;
  }
  __device__ __forceinline__ static int column() { return thread() % 4 * 2; }
};
/// The cast of an output, in the place of P.
using OutputCast = sm90::CastTile<OutputThreads, kOutputBarrier, 4>;

/// Additions for the edges of the layer. The scorer finds an item's angles when it takes Q, up to two items
/// before the output warpgroups turn the output by them.
struct LayerEdges {
  static constexpr int kItems = 4;  // a power of two

  sm90::QueryEdge<fp8_584::kDim / 64>::Memory query;
  sm90::Angles output[kItems];
  OutputCast::Factors factors[2];        // of the output warpgroups
  int turned;                            // items with blocks whose output has been turned
  std::uint8_t* codes[sm90::kTileRows];  // of rows; null: no such row
};
/// Sparse prefill: the largest probability of a row, by the threads that share it.
template <class Config>
struct LargestProbabilities {
  float by_sharer[Config::kSharers][Config::kRows];
};
struct None {};
struct NoEdges {};
struct NoLargest {};

template <class Config_>
struct alignas(1024) SharedMemory {
  using Config = Config_;

  std::uint8_t q[Config::kQueryTiles][Config::kTileBytes];  // fp16; RoPE in bf16, last, but for e4m3
  union {
    std::uint8_t p[Config::kTileBytes];                  // of a block
    struct {                                             // at a segment's end
      float bounds[Config::kOutputs][4][Config::kRows];  // of a row's sums, by warp
      float scale[Config::kOutputs][Config::kRows];      // factors to fp16
    } partial;
  };
  [[no_unique_address]] std::conditional_t<Config::kRopeIsValue, PlainP<Config>, None> plain;
  std::uint8_t blocks[Config::kSlots][Config::kBlockBytes];  // tokens as they are in the cache
  Scores<Config> scores;
  TokenScales<Config> tokens[Config::kSlots];
  [[no_unique_address]] std::conditional_t<Config::kLists, LoadedLists, None> lists;
  [[no_unique_address]] std::conditional_t<Config::kEdges, LayerEdges, NoEdges> edges;
  float by_sharer[Config::kSharers][Config::kRows];  // maxima, sums
  float factor[Config::kRows];                       // by which outputs shrink, or what they end with
  sm90::RowsBehind<Config::kRows> scored_rows,
      output_rows;  // the scorer is at the next segment before the others are
  sm90::RowPlace<typename Config::Element> row_place[Config::kRows];
  // Is a probability of the block too large, or (e4m3) a token masked? The next block's is 0 meanwhile.
  int restarts[2];
  sm90::PoisonedRows poisoned_rows[Config::kVDim];  // by column (fp8/poison.cuh)
  int poisoned[Config::kOutputs];                   // is there any in its columns?
  int query_max[Config::kComputeGroups * 4];        // of each warp
  std::uint64_t live[Config::kSlots];               // which tokens of a block count
  ptx::Barrier full[Config::kSlots], empty[Config::kSlots];
  ptx::Barrier scored, softened;  // scores are ready; have been read
  ptx::Barrier p_free, has_p;     // P is no longer read; is ready
  ptx::Barrier has_query;         // Q has come from memory
  sm90::SegmentList segments;
  sm90::MergeBegun merge;
  [[no_unique_address]] std::conditional_t<Config::kTurns, LargestProbabilities<Config>, NoLargest> largest;

  /// What the loader by lists waits for after its first block. Not has_query: if the call's first item is
  /// empty, or Q comes a second time, its next phase may be over before a warp waits.
  __device__ __forceinline__ ptx::Barrier& first_query() { return lists.first_query; }
};

/// Computes what takes many instructions, once a row and segment.
template <class Config>
__device__ __forceinline__ void find_row(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                         const sm90::RowTile& tile, int n) {
  if constexpr (!Config::kRowsAlike) shared.output_rows.find(args, tile, n);
  shared.row_place[n] = sm90::RowPlace<typename Config::Element>::find(args, tile, n);
  if constexpr (Config::kLists) {  // to avoid a trip to memory at the end
    if (args.output.sink != nullptr && n < tile.rows) {
      shared.lists.sink[n] = __ldg(args.output.sink + tile.head(args.query, n));
    }
  }
  if constexpr (Config::kEdges) {
    const bool is_cast = args.edges.codes != nullptr && n < tile.rows;
    shared.edges.codes[n] = is_cast ? sm90::codes_of_row<Config::kVDim>(args, tile, n) : nullptr;
  }
}
/// Does the scorer find the rows, at the second block? By then the output warpgroups have written the
/// previous rows. Rows are not needed before the end.
template <class Config>
__device__ __forceinline__ bool finds_rows_ahead(const sm90::Work& work) {
  return Config::kLists && work.blocks() > 1;
}

inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace flashlatent::fp8::rows64
