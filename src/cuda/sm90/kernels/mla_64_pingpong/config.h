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

/// Does a CTA load all of its blocks at once (load/rows_at_once.cuh)?
template <class Loader>
inline constexpr bool kLoadsAtOnce = requires {
  requires Loader::kAtOnce;
};

/// kCluster_ = 2: two CTAs that hold the two tiles of 128 query rows take the same KV blocks from an fp8_656
/// cache, each loading half of each tile's tokens for both; in units of tokens, except for shares of one
/// request. kTeam_ > 1: so many CTAs of a cluster share a row tile's blocks, and merge their outputs
/// (team.cuh); with loaders that load at once, at most so many (any_team.cuh). kHasShare_: a part is a share
/// of one item (walk/shares.cuh); by two lists also whole items by kTurns. kTurns_: sparse prefill
/// (schedule::Partition::kTurns).
template <class Element_, int kQkDim_, int kVDim_, int kCluster_, class Loader_, int kTeam_ = 1,
          bool kHasShare_ = false, bool kTurns_ = false, bool kEdges_ = false>
struct Config {
  using Element = Element_;
  using Loader = Loader_;
  static constexpr int kCluster = kCluster_;
  static constexpr int kTeam = kTeam_;
  static constexpr bool kHasShare = kHasShare_;
  static constexpr bool kTurns = kTurns_;
  static constexpr bool kEdges = kEdges_;  // of the layer, in the kernel's own passes
  /// Query tokens of ragged requests may be requests to the plan (walk/row_tile.cuh).
  static constexpr bool kTokens = sm90::kTakesLists<Loader> && !kTurns;
  static_assert(!(kHasShare || kTurns) || kTeam == 1);
  /// CTAs can run the combine step, too (merge/merge_step.cuh).
  static constexpr bool kMerges = kTeam == 1 && !kHasShare && !kTurns;
  static constexpr bool kAtOnce = kLoadsAtOnce<Loader>;
  static_assert(kTeam == 1 || (kCluster == 1 && (kAtOnce || 8 % kTeam == 0)));
  /// The type of stored partial results (merge/partial.cuh).
  using Stored = sm90::StoredPartial<Element, sm90::kTileRows>;
  static constexpr int kQkDim = kQkDim_;
  static constexpr int kVDim = kVDim_;
  static constexpr int kQkChunks = kQkDim / 64;
  static constexpr int kVChunks = kVDim / 64;
  static constexpr int kHalfChunks = kVChunks / 2;  // of the output that a warpgroup holds
  static constexpr int kHalfDim = kVDim / 2;

  /// Whether values and scores are in units of tokens (math/fp8_units.cuh). Then all operands but RoPE are
  /// fp16.
  static constexpr bool kUnits = requires { Loader::kUnits; };
  using Operand = std::conditional_t<kUnits, __half, Element>;
  static_assert(!kTurns || !kUnits, "a base of units is no row's largest score");

  static constexpr bool kListShares = kHasShare && sm90::kTakesLists<Loader>;
  /// Whether all rows of a tile attend to the same tokens: rows of sparse prefill do, and shares and teams by
  /// lists have such items (takes.cc, team_takes.cc).
  static constexpr bool kRowsAlike = kListShares || kTurns || kAtOnce;
  /// Whether each loading warp keeps its place among the segments in shared memory.
  static constexpr bool kWarpsWalk = kListShares || (sm90::kTakesLists<Loader> && sm90::kHasOneLoop<Loader>);
  /// Whether a CTA mostly has one or two pairs of blocks, so that it runs all code for the first time: shares
  /// and teams by boxes. Then rare code in between takes time, and is kept short.
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
  // With these numbers no loop over blocks reads spilled registers; with 200 for computing threads ptxas
  // would serialise their products.
  static constexpr Registers kRegisters = kThreads > 384              ? Registers{.compute = 208, .load = 48}
                                          : kUnits || kHalfDim <= 128 ? Registers{.compute = 208, .load = 88}
                                          : kQkDim == 512             ? Registers{.compute = 216, .load = 72}
                                                                      : Registers{.compute = 224, .load = 56};

  /// V's columns in a product: ptxas takes no more registers for one than a thread has at launch.
  static constexpr int kPvColumns = kThreads == 384 || kHalfDim < 128 ? kHalfDim : 128;

  /// Whether the computing warpgroups run the same instructions before and after a segment's blocks. Half of
  /// the 5 us of writing an output is waiting for instructions, which run once: the second warpgroup then
  /// finds those that the first has fetched. With 512 threads this makes the loop slower (0.111 ms for 0.109,
  /// by a version with other waits). But shares by lists have few blocks, and all other code runs once.
  static constexpr bool kSharesCode = kThreads == 384 || kListShares || kAtOnce;

  using Buffer = KvBuffer<kQkChunks>;
  using State = KvState<kQkChunks, kUnits>;

  /// Tiles are filled in the order in which they become free: RoPE first (only QK^T reads it), then the half
  /// of V whose warpgroup uses this buffer first; a loader that converts has its own order.
  __host__ __device__ static constexpr int chunk_order(int buffer, int i) {
    constexpr int kRopeChunks = kQkChunks - kVChunks;
    if (i < kRopeChunks) return kVChunks + i;
    // Not modulo: where i is constant, so are the differences of the tiles' addresses.
    const int v = i - kRopeChunks, shift = Loader::kZeroesDead ? 0 : buffer * kHalfChunks;
    return v < kHalfChunks ? v + shift : v - shift;
  }

  /// The chunk whose barriers stand for this chunk's tile: itself, the second one of a pair, or the last one
  /// of a half of V.
  __host__ __device__ static constexpr int barrier_of(int chunk) {
    if (chunk >= kVChunks) return chunk;
    if constexpr (kUnits) return chunk / kHalfChunks * kHalfChunks + kHalfChunks - 1;
    return Loader::kPairs ? chunk | 1 : chunk;
  }
  /// The same for its full barrier: RoPE comes with the left half of V.
  __host__ __device__ static constexpr int full_of(int chunk) {
    return barrier_of(kUnits && chunk >= kVChunks ? 0 : chunk);
  }
  static_assert(!(kUnits || Loader::kPairs) || (kQkChunks - kVChunks <= 1 && kHalfChunks % 2 == 0));

  static_assert(kQkDim % 64 == 0 && kVDim % 128 == 0 && kVDim <= kQkDim && kVDim <= 512);
  // A launch grants 168 registers for each of 384 threads, or 128 for 512; setmaxnreg would wait for ever for
  // more.
  static_assert(2 * kRegisters.compute + kLoaderThreads / 128 * kRegisters.load <=
                (kThreads == 384 ? 3 * 168 : 4 * 128));
};

}  // namespace flashlatent::mla_64_pingpong
