// Compile-time shape of the 16-row kernel.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "cuda/parts/sent_unit.cuh"
#include "cuda/parts/tile.cuh"

namespace flashlatent::mla_16 {

inline constexpr int kRows = 16;  // query rows a tile: mma.sync's M
inline constexpr int kWarps = 8;  // that compute

/// kTeam_: CTAs of a cluster that share a segment's blocks. What counts for them is that Q is there soon: all
/// of it in eight warps' registers takes half a microsecond longer than half of it. Where there are many
/// blocks it is that each takes less time: nothing is exchanged within a pair of warps then (0.9 us a call of
/// 64 to 128 blocks a CTA).
/// kTurns_: sparse prefill (schedule::Partition::kTurns).
template <class Element_, int kQkDim_, int kVDim_, class Loader_, int kTeam_ = 1, bool kTurns_ = false>
struct Config {
  using Element = Element_;
  using Loader = Loader_;
  static constexpr int kRows = mla_16::kRows;
  static constexpr int kTeam = kTeam_;
  static constexpr bool kTurns = kTurns_;
  static constexpr bool kPairedWarps = kTeam > 1;  // warps that share tokens, each with half of the columns
  static constexpr int kQkDim = kQkDim_;
  static constexpr int kVDim = kVDim_;
  static constexpr int kQkChunks = kQkDim / 64;
  static constexpr int kVChunks = kVDim / 64;
  static constexpr int kRopeChunks = kQkChunks - kVChunks;

  static constexpr int kComputeThreads = 32 * kWarps;
  static constexpr int kLoaderThreads = 128;
  static constexpr int kThreads = kComputeThreads + kLoaderThreads;
  // Q takes 144 of a thread's registers at 576 columns, or half as many, its output 32. In a team each role
  // walks the plan, and keeps addresses that it found ahead.
  static constexpr int kLoaderRegisters = kPairedWarps ? 72 : 56;
  static constexpr int kComputeRegisters = kPairedWarps ? 216 : 224;

  // Columns of the output that a warp has, and warps that share a tile of V.
  static constexpr int kWarpColumns = kVDim / kWarps;
  static constexpr int kWarpsAChunk = 64 / kWarpColumns;

  // The output in units of 64 columns and 8 rows. In a team each has an owner, to whom the others send
  // theirs.
  static constexpr int kUnits = kVChunks * kRows / 8;
  static constexpr int kOwnedUnits = kUnits > kTeam ? kUnits / kTeam : 1;
  static constexpr int kOwners = kUnits / kOwnedUnits;
  static constexpr bool kPacksSums = std::is_same_v<Element, __nv_bfloat16>;
  using SentUnit = std::conditional_t<kPacksSums, parts::PackedSentUnit<kWarpsAChunk>, parts::SentUnit>;
  static constexpr int kPairApart = 8;
  static constexpr float kLargestP = 1;
  __host__ __device__ static constexpr int unit_row(int unit, int thread) {
    return unit % 2 * 8 + thread % 32 / 4;
  }
  __host__ __device__ static constexpr int unit_column(int unit, int thread) {
    return unit / 2 * 64 + thread / 32 * 16 + thread % 4 * 2;
  }
  static constexpr int kTeamBytes =
      kTeam == 1 ? 0 : kTeam * (kOwnedUnits * int{sizeof(SentUnit)} + kRows * 8);

  // Whole blocks, so that a tile's address follows from the block's: 3 of 576 or 512 columns, 5 of 320.
  static constexpr int kReservedBytes = 8192;  // P, statistics, barriers
  static constexpr int kRingBlocks =
      (227 * 1024 - kReservedBytes - kTeamBytes) / (kQkChunks * static_cast<int>(sizeof(parts::Tile)));
  static constexpr int kRingTiles = kRingBlocks * kQkChunks;

  // A block is announced and given back as one where it comes so, else tile by tile.
  static constexpr bool kWholeBlocks = Loader::kWholeBlocks;
  static constexpr int kBarriers = kWholeBlocks ? 1 : kQkChunks;  // of a block, full as empty
  // From a token's row to the one's of 16 tokens on.
  static constexpr int kStepBytes = (kWholeBlocks ? kQkChunks : 1) * parts::kBoxRows * parts::kRowBytes;

  /// RoPE first: only QK^T reads it, so that it comes free first.
  __host__ __device__ static constexpr int chunk_order(int i) {
    return i < kRopeChunks ? kVChunks + i : i - kRopeChunks;
  }

  /// Arrivals that give back a block's i-th tile, after all have scored: of warps that read V there, or of
  /// all. What comes as one is given back by all.
  __host__ __device__ static constexpr int readers_of(int i) {
    return (i == 0 ? kWarps : kWarpsAChunk) * (Loader::kAllReadersArrive ? 32 : 1);
  }

  // No fence of readers': ldmatrix sees what cp.async writes as it is.
  static_assert(Loader::kThreads <= kLoaderThreads && !Loader::kPairs);
  static_assert(kQkDim % 64 == 0 && kVDim % 256 == 0 && kVDim <= kQkDim && kVDim <= 512);
  static_assert(kRingBlocks >= 2 && kRopeChunks <= 1);
  // What a launch gets, 168 registers for each of 384 threads; asking for more would wait for ever.
  static_assert(2 * kComputeRegisters + kLoaderRegisters <= 3 * 168);
  static_assert(kTeam == 1 || (kUnits % kOwnedUnits == 0 && kOwners <= kTeam && kOwnedUnits <= 4));
};

}  // namespace flashlatent::mla_16
