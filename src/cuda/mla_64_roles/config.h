// Compile-time shape of the mla_64_roles kernel.
#pragma once

#include "cuda/parts/partial.cuh"
#include "cuda/parts/tile.cuh"

namespace flashlatent::mla_64_roles {

/// Tokens come, are scored and multiplied by so many, a stage of the ring: one TMA box.
inline constexpr int kStageTokens = 32;

/// How the tokens of a stage come.
enum class Supplies {
  kBoxes,   ///< By one box of a page (supply.cuh).
  kTokens,  ///< Each by itself (token_supply.cuh).
};

/// kHasShare_: a part is a share of one request (parts/shares.cuh), which is merged by a launch of its own.
/// kTurns_: sparse prefill (schedule::Partition::kTurns).
template <class Element_, int kQkDim_, int kVDim_, bool kHasShare_, Supplies kSupplies, bool kTurns_ = false>
struct Config {
  using Element = Element_;
  static constexpr int kQkDim = kQkDim_, kVDim = kVDim_;
  static constexpr bool kHasShare = kHasShare_;
  static constexpr bool kTurns = kTurns_;
  static constexpr bool kByTokens = kSupplies == Supplies::kTokens;
  /// CTAs can do the combine step, too (parts/merge_step.cuh).
  static constexpr bool kMerges = !kHasShare && !kTurns;
  /// What partial results are stored as (parts/partial.cuh).
  using Stored = parts::StoredPartial<Element, parts::kTileRows>;

  static constexpr int kQkChunks = kQkDim / 64;
  static constexpr int kVChunks = kVDim / 64;
  static constexpr int kHalfChunks = kVChunks / 2;  // of the output that a warpgroup holds
  static constexpr int kHalfDim = kVDim / 2;

  static constexpr int kStages = 5;  // of the ring
  /// Of Q in the scorer's registers, 16 a thread each; the others are in shared memory.
  static constexpr int kRegisterChunks = 8;
  static constexpr int kSharedChunks = kQkChunks > kRegisterChunks ? kQkChunks - kRegisterChunks : 1;
  static_assert(kQkChunks >= kRegisterChunks);

  static constexpr int kOutputThreads = 256, kOutputWarps = kOutputThreads / 32;  // two warpgroups
  static constexpr int kThreads = kOutputThreads + 128;
  /// Arrivals by which a stage is given back: of one lane a warp, or of all where threads write it, since
  /// racecheck sees no other order.
  static constexpr int kReleases = kByTokens ? kOutputThreads : kOutputWarps;
  // Q takes 128 of the scorer's, half the output 128 of the others', for which ptxas wants 160 at least.
  static constexpr int kScorerRegisters = 184, kOutputRegisters = 160;
  static_assert(kScorerRegisters + 2 * kOutputRegisters <= 3 * 168);  // what a launch gets

  static_assert(kQkDim % 64 == 0 && kVDim % 128 == 0 && kVDim <= kQkDim && kVDim <= 512);
};

}  // namespace flashlatent::mla_64_roles
