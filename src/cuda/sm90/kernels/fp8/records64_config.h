// Compile-time shape of the 64-row kernel for records: mxfp8_528 and nvfp4_288.
#pragma once

#include <cuda_bf16.h>

#include "core/formats/mxfp8_528.h"
#include "core/formats/nvfp4_288.h"
#include "cuda/sm90/kernels/fp8/token_kind.h"
#include "cuda/sm90/math/tile.cuh"

namespace flashlatent::fp8::records64 {

/// kAlone_: a CTA has a share of one item, or whole items by kTurns (walk/listed_items.cuh).
template <bool kAlone_>
struct Config {
  using Element = __nv_bfloat16;
  static constexpr Tokens kTokens = Tokens::kRecords;
  static constexpr bool kE4m3 = false, kFp8_584 = false;
  static constexpr bool kListsInRegisters = true;  // in the loader
  static constexpr bool kAlone = kAlone_;
  static constexpr int kRows = sm90::kTileRows;  // query rows a tile, wgmma's N for scores

  static constexpr int kQkDim = mxfp8_528::kDim, kVDim = kQkDim;
  static_assert(kQkDim == nvfp4_288::kDim);
  static constexpr int kChunks = kVDim / 64;
  static constexpr int kScorers = 1;
  static constexpr int kOutputs = 2;  // warpgroups, each half of the output's columns
  static constexpr int kPartDim = kVDim / kOutputs, kPartChunks = kPartDim / 64;

  static constexpr int kComputeThreads = kOutputs * 128;       // of the outputs, which load Q, too
  static constexpr int kLoadersBegin = kComputeThreads + 128;  // behind the scorer
  static constexpr int kThreads = kLoadersBegin + 128;
  // Half of the output is 128 registers of a thread.
  static constexpr int kOutputRegisters = 176, kScorerRegisters = 128, kLoaderRegisters = 32;
  static_assert(kOutputs * kOutputRegisters + kScorerRegisters + kLoaderRegisters == 4 * 128);

  // P is scaled to at most 2^kLargestP; kSlack as few_rows::Config's.
  static constexpr int kLargestP = 9, kSlack = 6;

  static constexpr int kTileBytes = sizeof(sm90::Tile);  // 64 columns of Q
  static constexpr int kQueryTiles = kChunks;
  /// Places of half of a block's values.
  static constexpr int kHalves = 3;
  /// As with few rows (records_config.h).
  static constexpr int kStageTokens = 16, kWarpStages = 2;
  static constexpr int kStageBytes = kStageTokens * (nvfp4_288::kTokenBytes + 32);
  static constexpr int kBlocksAhead = 1;
};

}  // namespace flashlatent::fp8::records64
