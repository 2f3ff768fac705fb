// Compile-time shape of the 64-row kernel.
#pragma once

#include <cuda_bf16.h>

#include "cuda/sm90/kernels/fp8/token_kind.h"
#include "cuda/sm90/math/tile.cuh"

namespace flashlatent::fp8::rows64 {

/// kEdges_: the edges of the layer in the kernel's own passes, with two lists. kTurns_: for sparse prefill
/// from one list, with the largest scores.
template <Tokens kTokens_, bool kEdges_ = false, bool kTurns_ = false>
struct Config : TokenConfig<kTokens_> {
  using Kind = TokenConfig<kTokens_>;
  using Kind::kChunks, Kind::kLists, Kind::kVDim;
  static constexpr bool kEdges = kEdges_;
  static constexpr bool kTurns = kTurns_;
  static_assert(kLists ? !kTurns : !kEdges);
  static constexpr bool kListsInRegisters = false;  // in the loader
  // All rows of a tile attend to the same tokens, and dead tokens are zeros.
  static constexpr bool kRowsAlike = kLists;
  using Element = __nv_bfloat16;
  static constexpr int kRows = sm90::kTileRows;  // query rows a tile, wgmma's N

  static constexpr int kOutputs = 2;  // warpgroups, each half of the output's columns
  static constexpr int kPartDim = kVDim / kOutputs;
  static constexpr int kPartChunks = kPartDim / 64;  // products with M = 64
  static constexpr int kGroups = kVDim / kTraits<kTokens_>.group;
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
  static constexpr int kLoaderRegisters = Kind::kFp32Scales ? 24 : 32;
  static constexpr int kScorerRegisters = 4 * 128 - kOutputs * kOutputRegisters - kLoaderRegisters;

  // Four threads have a row's probabilities of a block, each of so many tokens.
  static constexpr int kSharers = kOutputThreads / kRows, kShareTokens = 64 / kSharers;

  static constexpr int kTileBytes = kRows * 128;  // 64 columns of Q, or 64 tokens of P
  static constexpr int kQueryTiles = kChunks;
  static constexpr int kSlots = 3;  // blocks of tokens
  // Items of two lists are short. The next Q is loaded before the last scores are handed over, and multiplied
  // by a guessed factor.
  static constexpr bool kAsksAhead = kLists, kGuessesQuery = kLists;
};

// Named barriers: of the scorer, of both output warpgroups, of one output warpgroup (+ which), and of all
// three, at a call's first Q.
inline constexpr int kScorerBarrier = 1, kOutputsBarrier = 2, kOutputBarrier = 3, kQueryBarrier = 5;

}  // namespace flashlatent::fp8::rows64
