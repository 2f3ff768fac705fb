// Compile-time shape of the transposed kernel.
#pragma once

#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/walk/listed_tokens.cuh"

namespace flashlatent::mla_16_transposed {

/// How a CTA finds its work.
enum class Told {
  kByPlan,  ///< Segments of the plan, one after another.
  kTurns,   ///< Sparse prefill (schedule::Partition::kTurns).
  kShare,   ///< A share of one item, or all of it (walk/shares.cuh).
};

/// kRows_ (8 or 16): query rows a tile, wgmma's N.
template <class Element_, int kQkDim_, int kVDim_, int kRows_, class Loader_, Told kTold = Told::kByPlan>
struct Config {
  using Element = Element_;
  using Loader = Loader_;
  static constexpr int kQkDim = kQkDim_;
  static constexpr int kVDim = kVDim_;
  static constexpr int kRows = kRows_;
  static constexpr bool kTurns = kTold == Told::kTurns;
  static constexpr bool kHasShare = kTold == Told::kShare;
  static constexpr int kQkChunks = kQkDim / 64;
  static constexpr int kVChunks = kVDim / 64;

  static constexpr int kComputeThreads = 256;  // two warpgroups
  static constexpr int kLoaderThreads = Loader::kThreads <= 128 ? 128 : 256;
  static constexpr int kThreads = kComputeThreads + kLoaderThreads;
  // With 16 rows there are twice as many loaders that convert: the output leaves them registers.
  static constexpr int kLoaderRegisters = kLoaderThreads == 128 ? 72 : 104;
  static constexpr int kComputeRegisters = kLoaderThreads == 128 ? 216 : 152;

  // KV tiles in flight fill the rest of 227 KB beside Q, P and statistics: 2.6 to 2.9 blocks at 576 columns.
  static constexpr int kQueryBytes = kRows * kQkDim * 2;
  static constexpr int kProbabilityBytes = 2 * kRows * 128;
  static constexpr int kReservedBytes = 4096;  // statistics, barriers, alignment

  static constexpr int kLoaderBytes = static_cast<int>(sizeof(typename Loader::Memory));
  static constexpr int kMostTiles =
      (227 * 1024 - kQueryBytes - kProbabilityBytes - kLoaderBytes - kReservedBytes) /
      static_cast<int>(sizeof(sm90::Tile));
  // Pairs need a ring of whole blocks: otherwise a place would be alternately the first and the second of a
  // pair, and its barrier would miss phases.
  static constexpr int kRingTiles = Loader::kPairs ? kMostTiles / kQkChunks * kQkChunks : kMostTiles;

  // At a segment's end one warpgroup hands its output (fp32) to the other, in the last V tiles of its last
  // block.
  static constexpr int kHandedTiles = kVDim * kRows * 4 / static_cast<int>(sizeof(sm90::Tile));
  static_assert(kHandedTiles <= kVChunks && kVDim * kRows * 4 % sizeof(sm90::Tile) == 0);

  // Blocks with a tile in the ring: a loader that may fill a block's first tile knows that the block so many
  // blocks before has been read.
  static constexpr int kLiveSlots = (kRingTiles + kQkChunks - 1) / kQkChunks;

  /// Which threads free a tile. If threads write tiles, and one lane of a warp frees what wgmma has read for
  /// all, each arrival counts for a lane: lanes that have read a tile by themselves then arrive themselves,
  /// in an order that racecheck sees.
  static constexpr bool kCountsLanes = Loader::kReaderFences && !Loader::kAllReadersArrive;
  static constexpr int kReleases = kCountsLanes || Loader::kAllReadersArrive ? 128 : 4;

  /// Does the copy engine fill a place of the ring for both warpgroups alternately? Its copies may land in
  /// another order than they were started.
  static constexpr bool kSharesPlaces = !Loader::kReaderFences && kRingTiles % (2 * kQkChunks) != 0;
  static_assert(!kSharesPlaces || kLiveSlots % 2 == 1, "a block's first place was the other's before");

  /// If blocks are converted, shared memory holds only two, and a block's time is its conversion's plus its
  /// products': then short chains of products matter. Scores are made in so many sums, and so many of V's
  /// chunks step by step.
  static constexpr int kScoreSums = sm90::kTakesLists<Loader> ? 4 : 2;
  static constexpr int kTogether = sm90::kTakesLists<Loader> ? 4 : 1;

  /// RoPE first: only QK^T reads it, so it is free first.
  __host__ __device__ static constexpr int chunk_order(int i) {
    constexpr int kRopeChunks = kQkChunks - kVChunks;
    return i < kRopeChunks ? kVChunks + i : i - kRopeChunks;
  }

  /// The tile, in the order of loading, whose barriers stand for the i-th: itself, or the second tile of a
  /// pair.
  __host__ __device__ static constexpr int barrier_of(int i) {
    if (!Loader::kPairs) return i;
    return kQkChunks % 2 == 1 ? i + i % 2 : i | 1;
  }
  static_assert(!Loader::kPairs || (kQkChunks - kVChunks == kQkChunks % 2 && kHandedTiles % 2 == 0));

  static_assert(kRows == 8 || kRows == 16);
  static_assert(kQkDim % 64 == 0 && kVDim % 128 == 0 && kVDim <= kQkDim && kVDim <= 512);
  static_assert(kRingTiles >= 2 * kQkChunks, "each warpgroup must be able to hold a block");
  // A launch grants 168 registers for each of 384 threads, or 128 for 512; setmaxnreg would wait for ever for
  // more.
  static_assert(2 * kComputeRegisters + kLoaderThreads / 128 * kLoaderRegisters <=
                (kThreads == 384 ? 3 * 168 : 4 * 128));
};

}  // namespace flashlatent::mla_16_transposed
