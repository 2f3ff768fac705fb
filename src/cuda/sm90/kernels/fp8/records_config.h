// Compile-time shape of the kernel of few rows for records: mxfp8_528 and nvfp4_288.
#pragma once

#include <cuda_bf16.h>

#include "core/formats/mxfp8_528.h"
#include "core/formats/nvfp4_288.h"
#include "cuda/sm90/kernels/fp8/token_kind.h"

namespace flashlatent::fp8::records {

/// What kernels for records have in common, whatever the number of query rows.
struct AnyConfig {
  using Element = __nv_bfloat16;
  static constexpr Tokens kTokens = Tokens::kRecords;
  static constexpr bool kE4m3 = false;
  static constexpr bool kListsInRegisters = true;  // in the loader

  static constexpr int kQkDim = mxfp8_528::kDim, kVDim = kQkDim;
  static_assert(kQkDim == nvfp4_288::kDim);
  static constexpr int kChunks = kVDim / 64;
  static constexpr int kQueryTiles = kChunks;

  // P is scaled to at most 2^kLargestP; kSlack as few_rows::Config's.
  static constexpr int kLargestP = 9, kSlack = 6;

  /// A stage has 16 tokens that a warp loads and another one reads: of nvfp4_288 whole tokens, of mxfp8_528
  /// whole ones, too, or half of their columns. Each scoring warp has stages of its own.
  static constexpr int kStageTokens = 16;
  static constexpr int stage_bytes(bool whole_tokens) {
    return kStageTokens * (whole_tokens ? mxfp8_528::kTokenBytes : nvfp4_288::kTokenBytes + 32);
  }
  /// Values of kBlocksAhead, which ListedRowLoader explains: the next range is sought at a range's end, or in
  /// its middle.
  static constexpr int kAllBlocks = -1;
  static constexpr int kBlocksAhead = 0;
};

/// kRows_: query rows a tile, wgmma's N: 8, 16 or 32. kAlone_: a CTA has a share of one item, or whole items
/// by kTurns (walk/listed_items.cuh). kEdges_: the edges of the layer in the kernel's own passes, with
/// kAlone_.
template <int kRows_, bool kAlone_, bool kEdges_ = false>
struct Config : AnyConfig {
  static constexpr bool kAlone = kAlone_, kEdges = kEdges_;
  static_assert(!kEdges || kAlone);
  static constexpr int kRows = kRows_;
  static_assert(kRows == 8 || kRows == 16 || kRows == 32);

  // One warpgroup has all columns of the output.
  static constexpr int kPartDim = kVDim, kPartChunks = kChunks;

  /// Two warpgroups score blocks alternately. Each has a place for its block's values, P and statistics.
  static constexpr int kScorers = 2;
  static constexpr int kComputeThreads = kScorers * 128;       // which load Q, too
  static constexpr int kLoadersBegin = kComputeThreads + 128;  // behind the output's warpgroup
  static constexpr int kThreads = kLoadersBegin + 128;
  static constexpr int kLoaderRegisters = 72;
  static constexpr int kScorerRegisters = kRows < 32 ? 152 : 136;
  static constexpr int kOutputRegisters = kRows < 32 ? 136 : 168;  // 16 values of the output a query row
  static_assert(kScorers * kScorerRegisters + kOutputRegisters + kLoaderRegisters == 4 * 128);

  static constexpr int kTileBytes = kRows * 128;  // 64 columns of Q, or 64 tokens of P
  /// A block's values are cut into so many slices of columns, and there are places for so many. With 32 rows
  /// two blocks less a slice leave room for whole tokens of mxfp8_528, less two for the edges of the layer,
  /// too.
  static constexpr int kSlices = kRows < 32 ? 2 : 4;
  static constexpr int kSlicePlaces = kScorers * kSlices - (kRows < 32 ? 0 : kEdges ? 2 : 1);
  static constexpr bool kWholeTokens = true;  // of mxfp8_528
  static constexpr int kWarpStages = 1, kStageBytes = stage_bytes(kWholeTokens);
};

}  // namespace flashlatent::fp8::records
