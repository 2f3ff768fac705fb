// Compile-time shape of the kernel with e4m3 products.
#pragma once

#include <cuda_bf16.h>

#include "core/formats/e4m3_latent.h"

namespace flashlatent::mla_64_e4m3 {

/// How blocks are loaded: by TMA boxes of pages, token by token, or token by token from two lists
/// (walk/listed_tokens.cuh).
enum class Supply { kBoxes, kTokens, kListed };

/// kQkDim_: 576, or 512 without RoPE. kRows_: query rows a tile, N of the products with V. kOverlaps_: a
/// block's scores, or their first chain, are computed while the previous block's P is: 2 to 3 % faster with
/// 64 rows, no faster with 16. kChains_: the sums of products that make a score. kTurns_: for sparse prefill.
template <int kQkDim_, int kRows_, Supply kSupply_, bool kTurns_ = false, bool kOverlaps_ = kRows_ == 64,
          int kChains_ = e4m3_latent::score_chains(kRows_)>
struct Config {
  using Element = __nv_bfloat16;  // of the output
  static constexpr int kRows = kRows_;
  static constexpr Supply kSupply = kSupply_;
  static constexpr bool kTurns = kTurns_;
  static constexpr bool kOverlaps = kOverlaps_;
  static constexpr int kChains = kChains_;
  static constexpr int kScores = kRows == 16 ? 3 : 2;  // buffers of a block's scores in a scorer's registers
  static constexpr bool kBoxes = kSupply == Supply::kBoxes, kLists = kSupply == Supply::kListed;

  static constexpr int kQkDim = kQkDim_, kVDim = e4m3_latent::kLatentDim;
  static constexpr int kChunks = kQkDim / 64;  // of 64 columns
  static constexpr int kOutputs = 2;           // warpgroups, each half of the output's columns
  static constexpr int kPartDim = kVDim / kOutputs;
  static constexpr int kPartChunks = kPartDim / 64;  // products with M = 64

  // A block's P is scaled to at most 2^8: e4m3 has numbers up to 448, and down to 2^-9.
  static constexpr float kLargestP = 8;
  // Sums are relative to the base of a row's first block until a later base is larger by more than 2^kSlack,
  // which fp32 can hold.
  static constexpr float kSlack = 60;

  static constexpr int kOutputThreads = kOutputs * 128;
  static constexpr int kComputeThreads = kOutputThreads + 128;  // and the scorer
  static constexpr int kThreads = kComputeThreads + 128;        // and the loader
  // Half of the output of 64 rows takes 128 registers of a thread, a product 32 more. Two blocks' scores, or
  // one block's and a chain's, take 64.
  static constexpr int kOutputRegisters = kRows == 16 ? 152 : 184;
  static constexpr int kLoaderRegisters = kRows == 16 ? 56 : kBoxes ? 24 : 32;
  static constexpr int kScorerRegisters = 4 * 128 - kOutputs * kOutputRegisters - kLoaderRegisters;

  static constexpr int kBlockBytes = 64 * kQkDim;
  static constexpr int kSlots = 4;   // blocks of tokens
  static constexpr int kPlaces = 2;  // of P
  static constexpr int kPBytes = kRows * 64;
};

// Named barriers: of the scorer, of both output warpgroups, and of one output warpgroup (+ which).
inline constexpr int kScorerBarrier = 1, kOutputsBarrier = 2, kOutputBarrier = 3;

}  // namespace flashlatent::mla_64_e4m3
