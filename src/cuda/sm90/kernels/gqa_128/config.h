// Compile-time shape of gqa_128's kernels.
#pragma once

#include "cuda/sm90/kernels/gqa_128/keys.h"

namespace flashlatent::gqa_128 {

/// kDim_: elements of a key and of a value, rounded up to 64, 128 or 256; TMA fills the rest with zeros.
/// kE4m3_: keys and values are e4m3, which the loading warpgroup converts to Element.
template <class Element_, int kDim_, Kind kKind_, bool kE4m3_ = false>
struct Config {
  using Element = Element_;
  static constexpr bool kE4m3 = kE4m3_;
  static constexpr int kDim = kDim_;
  static constexpr bool kShared = kKind_ == Kind::kShared;
  static constexpr bool kTransforms = kKind_ == Kind::kTransforms;
  static constexpr bool kSegments = kKind_ == Kind::kSegments;

  static constexpr int kChunks = kDim / 64;  // of 64 columns, 128 bytes a row
  static constexpr int kBlockTokens = block_tokens_of(kDim, kKind_);
  static constexpr int kWords = kBlockTokens / 64;  // of 64 tokens' bits
  static constexpr int kWarpgroups = warpgroups_of(kDim, kKind_, kE4m3);
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kStages = stages_of(kDim, kKind_, kE4m3);
  static constexpr int kCodeSlots = kE4m3 ? code_slots_of(kDim, kKind_) : 0;

  static constexpr int kComputeThreads = 128 * kWarpgroups;
  static constexpr int kThreads = kComputeThreads + 128;  // one more warpgroup loads
  // With segments the loading warpgroup walks the plan. At d 256 outputs need the registers that this would
  // take.
  static constexpr bool kWalksInRegisters = kSegments && kDim < 256;
  static constexpr int kLoaderRegisters = kWarpgroups == 3 ? 32 : kWalksInRegisters ? 88 : kE4m3 ? 72 : 56;
  static constexpr int kComputeRegisters = kWarpgroups == 3    ? 160
                                           : kWalksInRegisters ? 208
                                           : kE4m3             ? 216
                                                               : 224;

  static_assert(kDim == 64 || kDim == 128 || kDim == 256);
  static_assert(!kSegments || kStages % 2 == 0, "a stage is one warpgroup's");
  // A launch of 384 threads grants 168 registers each; setmaxnreg would wait for ever for more.
  static_assert(kWarpgroups * kComputeRegisters + kLoaderRegisters <= (kWarpgroups == 3 ? 4 * 128 : 3 * 168));
};

}  // namespace flashlatent::gqa_128
