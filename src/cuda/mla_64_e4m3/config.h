// Compile-time shape of the kernel with e4m3 products.
#pragma once

#include <cuda_bf16.h>

#include "core/e4m3_sums.h"

namespace flashlatent::mla_64_e4m3 {

/// How blocks come: by TMA's boxes of pages, token by token, or so by two lists (parts/listed_tokens.cuh).
enum class Supply { kBoxes, kTokens, kListed };

/// kQkDim_: 576, or 512 without RoPE.
/// kRows_: query rows a tile, N of the products with V.
/// kChains_: of products in which a score is added up.
/// kGroup_: blocks whose P is relative to one maximum, and whose product with V is one sum. With two the
/// outputs add and wait half as often, and the second one's first chain is made beside the first one's
/// softmax.
template <int kQkDim_, int kRows_, Supply kSupply_, int kChains_ = e4m3_latent::score_chains(kRows_),
          int kGroup_ = e4m3_latent::blocks_of_sum(kRows_)>
struct Config {
  using Element = __nv_bfloat16;  // of the output
  static constexpr int kRows = kRows_;
  static constexpr Supply kSupply = kSupply_;
  static constexpr int kChains = kChains_;
  static constexpr int kGroup = kGroup_;
  static constexpr int kScores = kRows == 16 ? 3 : 2;  // of a block, that a scorer's thread has registers for
  static constexpr bool kBoxes = kSupply == Supply::kBoxes, kLists = kSupply == Supply::kListed;

  static constexpr int kQkDim = kQkDim_, kVDim = e4m3_latent::kLatentDim;
  static constexpr int kChunks = kQkDim / 64;  // of 64 columns
  static constexpr int kOutputs = 2;           // warpgroups, each half of the output's columns
  static constexpr int kPartDim = kVDim / kOutputs;
  static constexpr int kPartChunks = kPartDim / 64;  // products with M = 64

  // A group's P is brought to at most 2^8: e4m3 has numbers up to 448, and down to 2^-9.
  static constexpr float kLargestP = 8;
  // Sums are relative to the base of a row's first group as long as later ones are larger by no more than
  // 2^kSlack, for which fp32 has room.
  static constexpr float kSlack = 60;

  static constexpr int kOutputThreads = kOutputs * 128;
  static constexpr int kComputeThreads = kOutputThreads + 128;  // and the scorer
  static constexpr int kThreads = kComputeThreads + 128;        // and the loader
  // Half of the output of 64 rows is 128 of a thread's, a product 32 more.
  // A block's scores and a chain of its or the next one's are 64, a first block's P is 16.
  static constexpr int kOutputRegisters = kRows == 16 ? 152 : 184;
  static constexpr int kLoaderRegisters = kRows == 16 ? 56 : kBoxes ? 24 : 32;
  static constexpr int kScorerRegisters = 4 * 128 - kOutputs * kOutputRegisters - kLoaderRegisters;

  static constexpr int kBlockBytes = 64 * kQkDim;
  static constexpr int kSlots = 4;            // blocks of tokens
  static constexpr int kPlaces = 2;           // of a group's P
  static constexpr int kPBytes = kRows * 64;  // of a block
};

// Named barriers: of the scorer, of both who multiply, and of one of these (+ which).
inline constexpr int kScorerBarrier = 1, kOutputsBarrier = 2, kOutputBarrier = 3;

}  // namespace flashlatent::mla_64_e4m3
