// Compile-time shape of mla_16.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/merge/sent_unit.cuh"

namespace flashlatent::mla_16 {

inline constexpr int kRows = 16;  // query rows of a tile: mma.sync's M
inline constexpr int kWarps = 8;  // computing warps

/// kTeam_: CTAs of a cluster that share a segment's blocks; 1: no teams. kTurns_: sparse prefill
/// (schedule::Partition::kTurns).
///
/// With teams, warps are paired: each has half of Q in its registers, because what counts is that Q arrives
/// early. All of Q in eight warps' registers takes half a microsecond longer. Without teams there are many
/// blocks and what counts is a block's time: each warp has all of Q, so that the warps of a pair exchange
/// nothing (0.9 us less for a call of 64 to 128 blocks a CTA).
template <class Element_, int kQkDim_, int kVDim_, class Loader_, int kTeam_ = 1, bool kTurns_ = false>
struct Config {
  using Element = Element_;
  using Loader = Loader_;
  static constexpr int kRows = mla_16::kRows;
  static constexpr int kTeam = kTeam_;
  static constexpr bool kTurns = kTurns_;
  static constexpr bool kPairedWarps = kTeam > 1;  // two warps share tokens, each with half of the columns
  static constexpr int kQkDim = kQkDim_;
  static constexpr int kVDim = kVDim_;
  static constexpr int kQkChunks = kQkDim / 64;
  static constexpr int kVChunks = kVDim / 64;
  static constexpr int kRopeChunks = kQkChunks - kVChunks;

  static constexpr int kComputeThreads = 32 * kWarps;
  static constexpr int kLoaderThreads = 128;
  static constexpr int kThreads = kComputeThreads + kLoaderThreads;
  // At 576 columns Q takes 144 registers of a thread (paired: 72) and the output 32. In a team each role
  // walks the plan, and keeps addresses that it computed ahead.
  static constexpr int kLoaderRegisters = kPairedWarps ? 72 : 56;
  static constexpr int kComputeRegisters = kPairedWarps ? 216 : 224;

  // A warp's columns of the output, and the warps that share a tile of V.
  static constexpr int kWarpColumns = kVDim / kWarps;
  static constexpr int kWarpsAChunk = 64 / kWarpColumns;

  // The output in units of 64 columns and 8 rows. In a team each unit has an owner, to which the other CTAs
  // send theirs.
  static constexpr int kUnits = kVChunks * kRows / 8;
  static constexpr int kOwnedUnits = kUnits > kTeam ? kUnits / kTeam : 1;
  static constexpr int kOwners = kUnits / kOwnedUnits;
  static constexpr bool kPacksSums = std::is_same_v<Element, __nv_bfloat16>;
  using SentUnit = std::conditional_t<kPacksSums, sm90::PackedSentUnit<kWarpsAChunk>, sm90::SentUnit>;
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

  // Stages are whole blocks, so that a tile's address follows from the block's: 3 blocks of 576 or 512
  // columns, 5 of 320.
  static constexpr int kReservedBytes = 8192;  // P, statistics, barriers
  static constexpr int kRingBlocks =
      (227 * 1024 - kReservedBytes - kTeamBytes) / (kQkChunks * static_cast<int>(sizeof(sm90::Tile)));
  static constexpr int kRingTiles = kRingBlocks * kQkChunks;

  // With kWholeBlocks a block is announced and freed as one, otherwise tile by tile.
  static constexpr bool kWholeBlocks = Loader::kWholeBlocks;
  static constexpr int kBarriers = kWholeBlocks ? 1 : kQkChunks;  // of a block: as many full as empty ones
  // From a token's row to the row of the token 16 later.
  static constexpr int kStepBytes = (kWholeBlocks ? kQkChunks : 1) * sm90::kBoxRows * sm90::kRowBytes;

  /// RoPE's chunk first: only Q K^T reads it, so its place is free first.
  __host__ __device__ static constexpr int chunk_order(int i) {
    return i < kRopeChunks ? kVChunks + i : i - kRopeChunks;
  }

  /// Arrivals that free a block's i-th tile after all warps have scored: one for each warp that reads V in
  /// it, or for all warps. A whole block takes the arrivals of all warps.
  __host__ __device__ static constexpr int readers_of(int i) {
    return (i == 0 ? kWarps : kWarpsAChunk) * (Loader::kAllReadersArrive ? 32 : 1);
  }

  // Readers need no fence: ldmatrix sees cp.async's writes.
  static_assert(Loader::kThreads <= kLoaderThreads && !Loader::kPairs);
  static_assert(kQkDim % 64 == 0 && kVDim % 256 == 0 && kVDim <= kQkDim && kVDim <= 512);
  static_assert(kRingBlocks >= 2 && kRopeChunks <= 1);
  // A launch grants 168 registers for each of 384 threads; setmaxnreg would wait for ever for more.
  static_assert(2 * kComputeRegisters + kLoaderRegisters <= 3 * 168);
  static_assert(kTeam == 1 || (kUnits % kOwnedUnits == 0 && kOwners <= kTeam && kOwnedUnits <= 4));
};

}  // namespace flashlatent::mla_16
