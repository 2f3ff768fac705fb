// Compile-time shape of the 64-row kernel.
#pragma once

#include <cuda_bf16.h>

#include "core/formats/e4m3_latent.h"
#include "core/formats/fp8_584.h"
#include "core/formats/fp8_656.h"
#include "cuda/sm90/kernels/fp8/token_kind.h"
#include "cuda/sm90/math/tile.cuh"

namespace flashlatent::fp8::rows64 {

/// kEdges_: the edges of the layer in the kernel's own passes, for fp8_584.
template <Tokens kTokens_, bool kEdges_ = false>
struct Config {
  static constexpr Tokens kTokens = kTokens_;
  static constexpr bool kEdges = kEdges_;
  static_assert(!kEdges || kTokens == Tokens::kFp8_584);
  static constexpr bool kFp8_584 = kTokens == Tokens::kFp8_584;
  static constexpr bool kE4m3 = is_e4m3(kTokens);
  static constexpr bool kBoxes = kTokens == Tokens::kE4m3Boxes;
  static constexpr bool kLists = kFp8_584;          // are tokens of two lists?
  static constexpr bool kListsInRegisters = false;  // in the loader
  // All rows of a tile attend to the same tokens, and dead tokens are zeros.
  static constexpr bool kRowsAlike = kFp8_584;
  using Element = __nv_bfloat16;
  static constexpr int kRows = sm90::kTileRows;  // query rows a tile, wgmma's N

  static constexpr int kQkDim = kFp8_584 ? fp8_584::kDim : fp8_656::kDim;
  static constexpr int kVDim = fp8_656::kLatentDim;
  static constexpr int kChunks = kQkDim / 64;
  static constexpr int kOutputs = 2;  // warpgroups, each half of the output's columns
  static constexpr int kPartDim = kVDim / kOutputs;
  static constexpr int kPartChunks = kPartDim / 64;  // products with M = 64
  // Columns of V that share a scale: 128, or 64.
  static constexpr int kGroups = kFp8_584 ? kVDim / fp8_584::kGroup : fp8_656::kGroups;
  static constexpr int kPartGroups = kGroups / kOutputs;

  // P is scaled to at most 2^kLargestP. Until a later maximum is larger by more than 2^kSlack, outputs are
  // not rescaled (few_rows_config.h).
  static constexpr int kLargestP = 9, kSlack = 6;

  static constexpr int kOutputThreads = kOutputs * 128;
  static constexpr int kComputeThreads = kOutputThreads + 128;  // and the scorer
  static constexpr int kComputeGroups = kOutputs + 1;
  static constexpr int kThreads = kComputeThreads + 128;  // and the loader
  // Half of the output is 128 registers of a thread.
  static constexpr int kOutputRegisters = 184;
  static constexpr int kLoaderRegisters = kTokens == Tokens::kFp8_656 ? 24 : 32;
  static constexpr int kScorerRegisters = 4 * 128 - kOutputs * kOutputRegisters - kLoaderRegisters;

  // Four threads have a row's probabilities of a block, each of so many tokens.
  static constexpr int kSharers = kOutputThreads / kRows, kShareTokens = 64 / kSharers;

  // Bytes from one token to the next; for fp8_584, whose tokens lie in pairs (token_pairs.cuh), for an even
  // number of tokens.
  static constexpr int kTokenBytes = kFp8_584 ? fp8_584::kTokenBytes
                                     : kE4m3  ? e4m3_latent::kDim
                                              : fp8_656::kTokenBytes;
  static constexpr int kBlockBytes = 64 * kTokenBytes;
  static constexpr int kTileBytes = kRows * 128;  // 64 columns of Q, or 64 tokens of P
  static constexpr int kQueryTiles = kChunks;
  static constexpr int kSlots = 3;  // blocks of tokens
  // Items of fp8_584 are short. The next Q is loaded before the last scores are handed over, and multiplied
  // by a guessed factor.
  static constexpr bool kAsksAhead = kFp8_584, kGuessesQuery = kFp8_584;
  static constexpr int kRopeOffset = kFp8_584 ? fp8_584::kRopeOffset : fp8_656::kRopeOffset;
};

// Named barriers: of the scorer, of both output warpgroups, of one output warpgroup (+ which), and of all
// three, at a call's first Q.
inline constexpr int kScorerBarrier = 1, kOutputsBarrier = 2, kOutputBarrier = 3, kQueryBarrier = 5;

}  // namespace flashlatent::fp8::rows64
