// Every byte of shared memory, once.
#pragma once

#include "cuda/sm90/kernels/mla_64_e4m3/config.h"
#include "cuda/sm90/load/ring_place.cuh"
#include "cuda/sm90/load/rows_behind.cuh"
#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/merge/team_unit.cuh"
#include "cuda/sm90/walk/segment_list.cuh"

namespace flashlatent::mla_64_e4m3 {

using sm90::RowsBehind;

/// A block's values beside P, for each row.
template <int kRows>
struct alignas(16) BlockScales {
  float factor[kRows];            // of the block's sums
  float shrink[kRows];            // of sums so far, if `shrinks` is set
  std::uint8_t shrinks[4];        // for 16 rows each: is any row rescaled?
  float base[kRows], sum[kRows];  // after a segment's last block: what sums are relative to, and of P
};

/// Sparse prefill: an item's rows' largest scores, to base 2, for the place of P of its last block.
template <class Config>
struct LargestScores {
  float of_row[Config::kPlaces][Config::kRows];
};
struct None {};

template <class Config_>
struct alignas(1024) SharedMemory {
  using Config = Config_;

  std::uint8_t q[Config::kChunks][64 * 64];
  std::uint8_t blocks[Config::kSlots][Config::kBlockBytes];
  std::uint8_t p[Config::kPlaces][Config::kPBytes];
  BlockScales<Config::kRows> scales[Config::kPlaces];
  float row_scale[64];                                 // of scores, to base 2
  float factor[Config::kRows];                         // of the output, in the end
  float bounds[Config::kOutputs][4][Config::kRows];    // of a partial result's values, by warp
  float fp16_scale[Config::kOutputs][Config::kRows];   // factors to fp16
  RowsBehind<Config::kRows> scored_rows, output_rows;  // the scorer reaches the next segment first
  sm90::RowPlace<typename Config::Element> row_place[Config::kRows];
  std::uint64_t live[Config::kSlots];                        // which tokens of a block count
  ptx::Barrier full[Config::kSlots], empty[Config::kSlots];  // a block has come; all have read it
  ptx::Barrier has_p[Config::kPlaces], p_free[Config::kPlaces];
  sm90::SegmentList segments;
  sm90::MergeBegun merge;
  [[no_unique_address]] std::conditional_t<Config::kTurns, LargestScores<Config>, None> largest;
};

inline constexpr int kMaxSharedBytes = 227 * 1024;

using sm90::RingPlace;

}  // namespace flashlatent::mla_64_e4m3
