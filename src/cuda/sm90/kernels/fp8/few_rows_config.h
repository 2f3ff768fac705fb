// Compile-time shape of the kernel of few rows.
#pragma once

#include <cuda_bf16.h>

#include "cuda/sm90/kernels/fp8/token_kind.h"
#include "cuda/sm90/merge/sent_unit.cuh"

namespace flashlatent::fp8::few_rows {

/// kRows_: query rows a tile, wgmma's N: 8, 16 or 32. kMerges_: CTAs run the combine step, too
/// (merge/merge_step.cuh). Decided at run time it takes small calls 0.3 to 0.6 us longer; why is not known.
/// kTeam_: CTAs of a cluster that share a segment's blocks. kAlone_: with two lists; a CTA has a share of one
/// item, or whole items by kTurns (walk/listed_items.cuh).
/// kEdges_: the edges of the layer in the kernel's own passes, with kAlone_. kTurns_: for sparse prefill from
/// one list, with the largest scores.
template <int kRows_, bool kMerges_, int kTeam_ = 1, Tokens kTokens_ = Tokens::kFp8_656, bool kAlone_ = false,
          bool kEdges_ = false, bool kTurns_ = false>
struct Config : TokenConfig<kTokens_> {
  using Kind = TokenConfig<kTokens_>;
  using Kind::kChunks, Kind::kE4m3, Kind::kLists, Kind::kRopeIsValue, Kind::kVDim;
  using Element = __nv_bfloat16;
  static constexpr int kTeam = kTeam_;
  static constexpr bool kMerges = kMerges_;
  static_assert(!kMerges || kTeam == 1);
  static constexpr int kRows = kRows_;
  static_assert(kRows == 16 || ((kRows == 8 || kRows == 32) && kTeam == 1));
  // A computing warp lists the part's segments. With 32 rows and scales in fp32 it has no registers left:
  // then the loader walks the plan, in local memory.
  static constexpr bool kListsSegments = kTeam == 1 && !kLists && (kRows < 32 || kE4m3);
  static constexpr bool kListsInRegisters = true;
  static constexpr bool kAlone = kAlone_;
  static constexpr bool kEdges = kEdges_;
  static_assert(!kEdges || kAlone);
  static constexpr bool kTurns = kTurns_;
  static_assert(!kTurns || (!kLists && !kMerges && kTeam == 1));
  static_assert(kLists ? kTeam == 1 && !(kAlone && kMerges) : !kAlone);
  // The computing warpgroups: they score blocks alternately, and each has half of the output of all blocks.
  static constexpr int kWarpgroups = 2;
  // P and its statistics have places for two blocks of each warpgroup: slow warps may still read those of the
  // warpgroup's previous block; before that place is used again, the vote of the block between has been
  // taken.
  static constexpr int kPlaces = 2 * kWarpgroups;
  static constexpr int kPartDim = kVDim / kWarpgroups;
  static constexpr int kPartChunks = kPartDim / 64;  // products with M = 64
  static constexpr int kPartGroups = kVDim / fp8_656::kGroup / kWarpgroups;

  // P is scaled to at most 2^9. Until a later maximum is larger by more than 2^6, outputs are not rescaled.
  // Below, fp16 has 33 binades left, and 11 bits where a kernel in bf16 has 8.
  static constexpr float kLargestP = 0x1p9F;
  static constexpr float kSlack = 6;

  static constexpr int kComputeThreads = kWarpgroups * 128;
  static constexpr int kThreads = kComputeThreads + 128;
  static constexpr int kLaunchRegisters = 168;  // what a launch gets
  static constexpr int kLoaderRegisters = kLists ? (kRows < 32 ? 88 : 72) : kTeam > 1 ? 56 : 40;
  static constexpr int kComputeRegisters = kLists ? (kRows < 32 ? 208 : 216) : kTeam > 1 ? 224 : 232;
  static_assert(kWarpgroups * kComputeRegisters + kLoaderRegisters == (kWarpgroups + 1) * kLaunchRegisters);

  // With scales of their own.
  static constexpr int kGroups = (kVDim - (kRopeIsValue ? kRopeDim : 0)) / kTraits<kTokens_>.group;
  static constexpr int kTileBytes = kRows * 128;  // 64 columns of Q, or 64 tokens of P
  static constexpr int kQueryTiles = kChunks;
  static constexpr int kRopeTiles = kRopeIsValue ? kPlaces : 0;  // of P for RoPE, which is value, too

  // In a team a unit of the output is kUnitColumns of one of a thread's four rows. An owner's own values of
  // its units go where P was: there is room for those of seven other CTAs (28 KB), not for eight.
  static constexpr int kUnitColumns = 128;
  static constexpr int kUnits = kVDim / kUnitColumns * 4;
  static constexpr int kOwnedUnits = kUnits / kTeam;
  static constexpr int kOwners = kTeam;
  using SentUnit = sm90::SentUnit;  // of a warpgroup's threads
  static constexpr int kPairApart = 64;
  __host__ __device__ static constexpr int unit_row(int unit, int thread) {
    return unit % 4 / 2 * 8 + unit % 2 + thread % 4 * 2;
  }
  __host__ __device__ static constexpr int unit_column(int unit, int thread) {
    return unit / 4 * kUnitColumns + thread / 32 * 16 + thread % 32 / 4 * 2;
  }

  static constexpr int kReservedBytes = 9 * 1024;  // statistics, barriers
  static constexpr int kTeamBytes = (kTeam - 1) * kOwnedUnits * int{sizeof(SentUnit)};
  // Four blocks may be worked on. A fifth, for which 8 rows leave room, gains nothing.
  static constexpr int kSlots = 4;
  static constexpr int kBytes =
      (kQueryTiles + kPlaces + kRopeTiles) * kTileBytes + kSlots * Kind::kBlockBytes;
  static_assert(kBytes + kReservedBytes + kTeamBytes <= 227 * 1024);
  static_assert(kTeam == 1 || kOwnedUnits * int{sizeof(SentUnit)} <= kPlaces * kTileBytes);
};

}  // namespace flashlatent::fp8::few_rows
