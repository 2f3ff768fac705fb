// Compile-time shape of mla_64_roles.
#pragma once

#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/merge/partial.cuh"

namespace flashlatent::mla_64_roles {

/// Tokens of a stage of the ring. A stage is loaded by one TMA box, scored and multiplied as a unit.
inline constexpr int kStageTokens = 32;

/// How the tokens of a stage are loaded.
enum class Supplies {
  kBoxes,   ///< One box of a page (supply.cuh).
  kTokens,  ///< Token by token (token_supply.cuh).
};

/// kHasShare_: a part is a share of one request (walk/shares.cuh), and a launch of its own merges. kTurns_:
/// sparse prefill (schedule::Partition::kTurns).
template <class Element_, int kQkDim_, int kVDim_, bool kHasShare_, Supplies kSupplies, bool kTurns_ = false>
struct Config {
  using Element = Element_;
  static constexpr int kQkDim = kQkDim_, kVDim = kVDim_;
  static constexpr bool kHasShare = kHasShare_;
  static constexpr bool kTurns = kTurns_;
  static constexpr bool kByTokens = kSupplies == Supplies::kTokens;
  /// Can CTAs run the combine step, too (merge/merge_step.cuh)?
  static constexpr bool kMerges = !kHasShare && !kTurns;
  /// The type of stored partial results (merge/partial.cuh).
  using Stored = sm90::StoredPartial<Element, sm90::kTileRows>;

  static constexpr int kQkChunks = kQkDim / 64;
  static constexpr int kVChunks = kVDim / 64;
  static constexpr int kHalfChunks = kVChunks / 2;  // chunks of the output that a warpgroup has
  static constexpr int kHalfDim = kVDim / 2;

  static constexpr int kStages = 5;  // stages of the ring
  /// Chunks of Q in the scorer's registers, 16 registers of a thread each; the other chunks are in shared
  /// memory.
  static constexpr int kRegisterChunks = 8;
  static constexpr int kSharedChunks = kQkChunks > kRegisterChunks ? kQkChunks - kRegisterChunks : 1;
  static_assert(kQkChunks >= kRegisterChunks);

  static constexpr int kOutputThreads = 256, kOutputWarps = kOutputThreads / 32;  // two warpgroups
  static constexpr int kThreads = kOutputThreads + 128;
  /// Arrivals that free a stage: one lane of each warp, or all lanes if threads write the stage, because
  /// racecheck sees no other order.
  static constexpr int kReleases = kByTokens ? kOutputThreads : kOutputWarps;
  // Q takes 128 registers of the scorer. Half of the output takes 128 of the other warpgroups, for which
  // ptxas needs at least 160.
  static constexpr int kScorerRegisters = 184, kOutputRegisters = 160;
  static_assert(kScorerRegisters + 2 * kOutputRegisters <= 3 * 168);  // the registers of a launch

  static_assert(kQkDim % 64 == 0 && kVDim % 128 == 0 && kVDim <= kQkDim && kVDim <= 512);
};

}  // namespace flashlatent::mla_64_roles
