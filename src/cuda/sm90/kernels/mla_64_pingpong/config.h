// Compile-time shape of the mla_64_pingpong kernel.
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/pipeline.cuh"
#include "cuda/sm90/load/kv_loader.cuh"
#include "cuda/sm90/merge/partial.cuh"
#include "cuda/sm90/walk/listed_tokens.cuh"

namespace flashlatent::sm90 {
class TmaLoader;
}

namespace flashlatent::mla_64_pingpong {

/// Registers of a thread that computes, and of one that loads.
struct Registers {
  int compute, load;
};

/// Does a CTA load all of its blocks at once (load/fp8_584_at_once.cuh)?
template <class Loader>
inline constexpr bool kLoadsAtOnce = requires {
  requires Loader::kAtOnce;
};

/// kCluster_ = 2: two CTAs that hold the two tiles of 128 query rows take the same KV blocks from an fp8_656
/// cache, each loading half of each tile's tokens for both; in units of tokens, but for shares of one
/// request. kTeam_ > 1: so many CTAs of a cluster share a row tile's blocks, and merge what they have
/// (team.cuh); of loaders that load at once so many at most (any_team.cuh). kHasShare_: a part is a share of
/// one item (walk/shares.cuh), by two lists also whole items in turn. kTurns_: sparse prefill
/// (schedule::Partition::kTurns).
template <class Element_, int kQkDim_, int kVDim_, int kCluster_, class Loader_, int kTeam_ = 1,
          bool kHasShare_ = false, bool kTurns_ = false>
struct Config {
  using Element = Element_;
  using Loader = Loader_;
  static constexpr int kCluster = kCluster_;
  static constexpr int kTeam = kTeam_;
  static constexpr bool kHasShare = kHasShare_;
  static constexpr bool kTurns = kTurns_;
  /// Query tokens of ragged requests may be requests to the plan (walk/row_tile.cuh).
  static constexpr bool kTokens = sm90::kTakesLists<Loader> && !kTurns;
  static_assert(!(kHasShare || kTurns) || kTeam == 1);
  /// CTAs can do the combine step, too (merge/merge_step.cuh).
  static constexpr bool kMerges = kTeam == 1 && !kHasShare && !kTurns;
  static constexpr bool kAtOnce = kLoadsAtOnce<Loader>;
  static_assert(kTeam == 1 || (kCluster == 1 && (kAtOnce || 8 % kTeam == 0)));
  /// What partial results are stored as (merge/partial.cuh).
  using Stored = sm90::StoredPartial<Element, sm90::kTileRows>;
  static constexpr int kQkDim = kQkDim_;
  static constexpr int kVDim = kVDim_;
  static constexpr int kQkChunks = kQkDim / 64;
  static constexpr int kVChunks = kVDim / 64;
  static constexpr int kHalfChunks = kVChunks / 2;  // of the output that a warpgroup holds
  static constexpr int kHalfDim = kVDim / 2;

  /// Whether values and scores are in units of tokens (math/fp8_units.cuh). What is multiplied is fp16 then,
  /// but for RoPE.
  static constexpr bool kUnits = requires { Loader::kUnits; };
  using Operand = std::conditional_t<kUnits, __half, Element>;
  static_assert(!kTurns || !kUnits, "a base of units is no row's largest score");

  static constexpr bool kListShares = kHasShare && sm90::kTakesLists<Loader>;
  /// Whether all rows of a tile attend to the same tokens: those of sparse prefill do, and shares by lists
  /// and teams by lists are of such items (takes.cc, team_takes.cc).
  static constexpr bool kRowsAlike = kListShares || kTurns || kAtOnce;
  /// Whether each loading warp keeps its place among the segments in shared memory.
  static constexpr bool kWarpsWalk = kListShares || (sm90::kTakesLists<Loader> && sm90::kHasOneLoop<Loader>);
  /// Whether a CTA mostly has one or two pairs of blocks, so that what it runs, it runs for the first time:
  /// shares and teams by boxes. Code that is rare and lies between costs time then, and is kept short.
  static constexpr bool kFewBlocks = (kHasShare || kTeam > 1) && std::is_same_v<Loader, sm90::TmaLoader>;
  /// Whether a call may have sm90::DecodeArguments::spans (takes.cc).
  static constexpr bool kSpans = !kFewBlocks;
  /// Whether a call always has sm90::QueryArguments::rows_in_boxes (launch.cc).
  static constexpr bool kQueryInLine = kFewBlocks && kHasShare;
  /// Whether a segment may be a whole item.
  static constexpr bool kWritesOutput = !kHasShare || kListShares;
  /// Whether the computing warps load the first blocks of a share.
  static constexpr bool kLoadsFirst = kHasShare && kCluster > 1 && !kListShares;

  static constexpr int kComputeThreads = 256;  // two warpgroups
  static constexpr int kLoaderThreads = Loader::kThreads <= 128 ? 128 : 256;
  static constexpr int kThreads = kComputeThreads + kLoaderThreads;
  // With these no loop over blocks reads spilled registers; with 200 for those that compute ptxas would
  // serialise their products.
  static constexpr Registers kRegisters = kThreads > 384              ? Registers{.compute = 208, .load = 48}
                                          : kUnits || kHalfDim <= 128 ? Registers{.compute = 208, .load = 88}
                                          : kQkDim == 512             ? Registers{.compute = 216, .load = 72}
                                                                      : Registers{.compute = 224, .load = 56};

  /// Whether tokens behind an end become zeros by unrolled stores. With 512 threads the loop over blocks has
  /// no registers for that: it would keep some in memory.
  static constexpr bool kUnrollsZeros = kThreads == 384;

  /// V's columns in a product: ptxas takes no more registers for one than a thread has at launch.
  static constexpr int kPvColumns = kThreads == 384 || kHalfDim < 128 ? kHalfDim : 128;

  /// Whether the computing warpgroups run the same instructions before and after a segment's blocks. Half of
  /// the 5 us that an output takes to write is waiting for instructions, which run once: the second
  /// warpgroup then finds those of the first. With 512 threads the loop is slower so (0.111 ms for 0.109,
  /// by a version that waited otherwise). But shares by lists have few blocks, and all else runs once.
  static constexpr bool kSharesCode = kThreads == 384 || kListShares || kAtOnce;

  using Buffer = KvBuffer<kQkChunks>;
  using State = KvState<kQkChunks, kUnits>;

  /// Tiles are filled in the order in which they come free: RoPE first (only QK^T reads it), then the half of
  /// V whose warpgroup takes this buffer first; but in their own order by a loader that converts.
  __host__ __device__ static constexpr int chunk_order(int buffer, int i) {
    constexpr int kRopeChunks = kQkChunks - kVChunks;
    if (i < kRopeChunks) return kVChunks + i;
    // Not modulo: where i is constant, so are the differences of the tiles' addresses.
    const int v = i - kRopeChunks, shift = Loader::kZeroesDead ? 0 : buffer * kHalfChunks;
    return v < kHalfChunks ? v + shift : v - shift;
  }

  /// The chunk whose barriers stand for this one's tile: its own, of a pair the second one's, or of a half of
  /// V its last one's.
  __host__ __device__ static constexpr int barrier_of(int chunk) {
    if (chunk >= kVChunks) return chunk;
    if constexpr (kUnits) return chunk / kHalfChunks * kHalfChunks + kHalfChunks - 1;
    return Loader::kPairs ? chunk | 1 : chunk;
  }
  /// The same of its full barrier: RoPE comes with the left half of V.
  __host__ __device__ static constexpr int full_of(int chunk) {
    return barrier_of(kUnits && chunk >= kVChunks ? 0 : chunk);
  }
  static_assert(!(kUnits || Loader::kPairs) || (kQkChunks - kVChunks <= 1 && kHalfChunks % 2 == 0));

  static_assert(kQkDim % 64 == 0 && kVDim % 128 == 0 && kVDim <= kQkDim && kVDim <= 512);
  // What a launch gets, 168 registers for each of 384 threads or 128 for 512; asking for more would wait for
  // ever.
  static_assert(2 * kRegisters.compute + kLoaderThreads / 128 * kRegisters.load <=
                (kThreads == 384 ? 3 * 168 : 4 * 128));
};

}  // namespace flashlatent::mla_64_pingpong
