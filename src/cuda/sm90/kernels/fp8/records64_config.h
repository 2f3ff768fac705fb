// Compile-time shape of the 64-row kernel for records: mxfp8_528 and nvfp4_288.
#pragma once

#include "cuda/sm90/kernels/fp8/records_config.h"
#include "cuda/sm90/math/tile.cuh"

namespace flashlatent::fp8::records64 {

/// kAlone_: a CTA has a share of one item, or whole items by kTurns (walk/listed_items.cuh). kEdges_: the
/// edges of the layer in the kernel's own passes, with kAlone_.
template <bool kAlone_, bool kEdges_ = false>
struct Config : records::AnyConfig {
  static constexpr bool kAlone = kAlone_, kEdges = kEdges_;
  static_assert(!kEdges || kAlone);
  static constexpr int kRows = sm90::kTileRows;  // query rows a tile, wgmma's N for scores

  static constexpr int kScorers = 1;
  static constexpr int kOutputs = 2;  // warpgroups, each half of the output's columns
  static constexpr int kPartDim = kVDim / kOutputs, kPartChunks = kPartDim / 64;

  static constexpr int kComputeGroups = kOutputs + kScorers;
  static constexpr int kOutputThreads = kOutputs * 128;
  static constexpr int kLoadersBegin = kOutputThreads + 128;  // behind the scorer
  static constexpr int kThreads = kLoadersBegin + 128;
  // Half of the output is 128 registers of a thread.
  static constexpr int kOutputRegisters = 160, kScorerRegisters = 160, kLoaderRegisters = 32;
  static_assert(kOutputs * kOutputRegisters + kScorerRegisters + kLoaderRegisters == 4 * 128);

  // The scorer takes Q as that of fp8_584 does (rows64_query.cuh): it loads the next one when it has done
  // with the present one, and multiplies it by a guessed factor.
  static constexpr bool kAsksAhead = true, kGuessesQuery = true, kRowsAlike = true;
  /// The next item is sought and announced when all of the present one's loads have begun: seeking it takes
  /// as long as three blocks, and fewer are loaded ahead.
  static constexpr bool kTellsAhead = true;
  static constexpr int kBlocksAhead = kAllBlocks;
  static constexpr int kTileBytes = sizeof(sm90::Tile);  // 64 columns of Q
  static constexpr int kPlaces = 2;                      // of P
  static constexpr int kSlices = 2, kSlicePlaces = 3;    // of a block's values: halves of the columns
  static constexpr bool kWholeTokens = false;
  static constexpr int kWarpStages = 2, kStageBytes = stage_bytes(kWholeTokens);
};

}  // namespace flashlatent::fp8::records64
