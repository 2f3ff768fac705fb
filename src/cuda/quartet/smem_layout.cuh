// Every byte of shared memory of the quartet kernel, once.
#pragma once

#include <type_traits>

#include "cuda/parts/merge_step.cuh"
#include "cuda/parts/segment_list.cuh"
#include "cuda/quartet/config.h"

namespace flashlatent::quartet {

struct NoMerge {};

/// S^T of a block as exponents to base 2: 64 tokens of kRows query rows each. Eight rows change places with
/// eight others from token to token, so that neither who writes fragments nor who reads rows meets in a bank.
struct Scores {
  float of_token[64][parts::kTileRows];

  __device__ __forceinline__ static int place(int token, int row) { return row ^ token % 4 * 8; }
};

/// Of a block's tokens: ratios of V's scales to its unit (parts/fp8_units.cuh), and by what a probability
/// times its unit is multiplied in the row's sum.
struct TokenScales {
  std::uint16_t ratio[fp8_656::kGroups][64];
  float share[64];
};

template <class Config_>
struct alignas(1024) SharedMemory {
  using Config = Config_;

  std::uint8_t q[Config::kQueryTiles][Config::kTileBytes];   // fp16, and RoPE in bf16 last
  std::uint8_t p[Config::kTileBytes];                        // of a block
  std::uint8_t blocks[Config::kSlots][Config::kBlockBytes];  // tokens as they are in the cache
  union {
    Scores scores;
    struct {                                             // at a segment's end
      float bounds[Config::kOutputs][4][Config::kRows];  // of a row's sums, by warp
      float scale[Config::kOutputs][Config::kRows];      // by which they come to fp16
    } partial;
  };
  TokenScales tokens[2];
  float by_sharer[Config::kSharers][Config::kRows];  // maxima, sums
  float factor[Config::kRows];                       // by which outputs shrink, or what they end with
  int row_behind[Config::kRows];          // of the request's tokens those that it does not attend to
  const uint4* row_query[Config::kRows];  // null: there is no such row
  parts::RowPlace<typename Config::Element> row_place[Config::kRows];
  std::uint8_t poison_from[Config::kVDim];      // of each column (direct/poison.cuh)
  int poisoned[Config::kOutputs];               // is there any in its columns?
  int query_max[Config::kComputeThreads / 32];  // of each warp
  std::uint64_t live[Config::kSlots];           // which tokens of a block count
  ptx::Barrier full[Config::kSlots], empty[Config::kSlots];
  ptx::Barrier scored, softened;  // the scores are there; have been read, and the P before been used
  ptx::Barrier p_free;            // nobody reads P any more
  ptx::Barrier has_query;         // Q has come from memory
  ptx::Barrier meeting;           // of all that compute
  parts::SegmentList segments;
  std::conditional_t<Config::kMerges, parts::MergeBegun, NoMerge> merge;
};

inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace flashlatent::quartet
