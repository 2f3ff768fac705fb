// Compile-time shape of the 64-row kernel.
#pragma once

#include <cuda_bf16.h>

#include "core/e4m3_latent.h"
#include "core/fp8_656.h"
#include "cuda/fp8/token_kind.h"
#include "cuda/parts/tile.cuh"

namespace flashlatent::fp8::rows64 {

template <Tokens kTokens_>
struct Config {
  static constexpr Tokens kTokens = kTokens_;
  static constexpr bool kE4m3 = kTokens != Tokens::kFp8_656;
  static constexpr bool kBoxes = kTokens == Tokens::kE4m3Boxes;
  static constexpr bool kLists = false;  // of tokens there is one list
  using Element = __nv_bfloat16;
  static constexpr int kRows = parts::kTileRows;  // query rows a tile, wgmma's N

  static constexpr int kQkDim = fp8_656::kDim;
  static constexpr int kVDim = fp8_656::kLatentDim;
  static constexpr int kChunks = kQkDim / 64;
  static constexpr int kOutputs = 2;  // warpgroups, each half of the output's columns
  static constexpr int kPartDim = kVDim / kOutputs;
  static constexpr int kPartChunks = kPartDim / 64;  // products with M = 64
  static constexpr int kPartGroups = fp8_656::kGroups / kOutputs;

  // P is brought to at most 2^kLargestP, until a later maximum is larger by no more than 2^kSlack, for which
  // outputs need not shrink (few_rows_config.h).
  static constexpr int kLargestP = 9, kSlack = 6;

  static constexpr int kOutputThreads = kOutputs * 128;
  static constexpr int kComputeThreads = kOutputThreads + 128;  // and the scorer
  static constexpr int kComputeGroups = kOutputs + 1;
  static constexpr int kThreads = kComputeThreads + 128;  // and the loader
  // Half of the output is 128 of a thread's.
  static constexpr int kOutputRegisters = 184, kLoaderRegisters = kE4m3 ? 32 : 24;
  static constexpr int kScorerRegisters = 4 * 128 - kOutputs * kOutputRegisters - kLoaderRegisters;

  // A row's probabilities of a block are four threads', of so many tokens each.
  static constexpr int kSharers = kOutputThreads / kRows, kShareTokens = 64 / kSharers;

  static constexpr int kTokenBytes = kE4m3 ? e4m3_latent::kDim : fp8_656::kTokenBytes;
  static constexpr int kBlockBytes = 64 * kTokenBytes;
  static constexpr int kTileBytes = kRows * 128;  // 64 columns of Q, or 64 tokens of P
  static constexpr int kQueryTiles = kChunks;
  static constexpr int kSlots = 3;  // blocks of tokens
};

// Named barriers: of those who score, of those who multiply, and of one warpgroup of these (+ which); of all
// of them, at a call's first Q.
inline constexpr int kScorerBarrier = 1, kOutputsBarrier = 2, kOutputBarrier = 3, kQueryBarrier = 5;

}  // namespace flashlatent::fp8::rows64
