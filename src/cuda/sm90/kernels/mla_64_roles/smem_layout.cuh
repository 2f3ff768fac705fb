// Every byte of mla_64_roles's shared memory, once.
#pragma once

#include <type_traits>

#include "cuda/sm90/kernels/mla_64_roles/config.h"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/shared_max.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/walk/segment_list.cuh"

namespace flashlatent::mla_64_roles {

/// A stage's tokens x 64 columns, swizzled like sm90::Tile.
struct alignas(1024) StageTile {
  std::uint8_t bytes[kStageTokens * sm90::kRowBytes];
};
template <class Config>
struct Stage {
  StageTile tiles[Config::kQkChunks];
};

/// What the scorer writes beside a stage's P, under the same barriers.
struct Statistics {
  int shrinks[64];  // must the outputs of a row be multiplied by `factors` first? the same for 16 rows
  float factors[64];
  // Written with a segment's last stage:
  float bases[64], sums[64];
  int poisoned;  // does poisoned_rows have an entry?
};

/// Sparse prefill: the largest scores, base 2, of each thread of the scorer; with an item's last stage, of
/// the rows.
struct Maxima {
  sm90::SharedMax low[128], high[128];
  float of_row[2][64];
};

/// How far the copies of KV have been computed.
struct Cursor {
  const std::int32_t* entries;  // of the item's request
  int begin, token, end;        // of the item's tokens: the first one, the next one, and the end
  int seen;                     // tokens that some row of the tile attends to
  int kv_head;
  int item;  // of the list, which has this parity
  std::uint32_t list_parity;
};

/// One copy: a stage's tokens of a page, or half of a tile's query rows.
struct alignas(16) StageCopy {
  int page;   // -1: there is no copy. Query rows: the request
  int token;  // in the page. Query rows: the first row
  int chunk;  // where the KV head begins. Query rows: kOfQuery
  std::uint32_t live;
};
inline constexpr int kOfQuery = -1;

/// The tokens of a stage that count, one bit each, if it was loaded by a box.
struct LiveTokens {
  std::uint32_t bits;
  __device__ __forceinline__ std::uint32_t get() const { return bits; }
};
/// The same if eight warps load four tokens each.
struct alignas(8) LiveTokensOfWarps {
  std::uint8_t even[4], odd[4];
  __device__ __forceinline__ void init() { *reinterpret_cast<uint2*>(this) = {0x0F0F0F0F, 0xF0F0F0F0}; }
  /// `lanes`: bits 0, 8, 16 and 24 are the warp's four tokens.
  __device__ __forceinline__ void put(int warp, std::uint32_t lanes) {
    const std::uint32_t bits = (lanes & 0x01010101) * 0x10204080 >> 28;
    if (warp % 2 == 0) {
      even[warp / 2] = bits;
    } else {
      odd[warp / 2] = bits << 4;
    }
  }
  __device__ __forceinline__ std::uint32_t get() const {
    const uint2 both = *reinterpret_cast<const uint2*>(this);
    return both.x | both.y;
  }
};

/// Addresses of tokens, for as many stages as a warp looks up at once; 0: a dead token.
struct alignas(256) TokenSources {
  std::uint64_t of[8][kStageTokens];
};

struct Nothing {};

/// Sparse prefill: used in place of a list of segments.
struct TurnPlace {
  int round, request;
};
template <class Config>
struct Turns {
  sm90::Work items[Config::kThreads / 32];  // the place of each warp
  TurnPlace ahead[Config::kOutputWarps];    // the place of each loading warp
};

template <class Config>
struct alignas(1024) SharedMemory {
  sm90::Tile q[Config::kSharedChunks];  // its last columns
  Stage<Config> kv[Config::kStages];
  sm90::Tile p;        // 32 columns for each of two stages
  sm90::Tile rows[2];  // of outputs on their way to memory, one for each multiplying warpgroup
  Statistics statistics[2];
  std::conditional_t<Config::kTurns, Maxima, Nothing> maxima;
  alignas(16) sm90::PoisonedRows poisoned_rows[Config::kVDim];  // by column
  int poisoned;
  std::conditional_t<Config::kByTokens, LiveTokensOfWarps, LiveTokens> live[Config::kStages];
  ptx::Barrier kv_full[Config::kStages], kv_empty[Config::kStages];
  ptx::Barrier p_full[2], p_empty[2];
  sm90::SegmentList segments;
  Cursor cursors[Config::kByTokens ? Config::kOutputWarps : 1];  // of the loading warps
  std::conditional_t<Config::kByTokens, Nothing, StageCopy[32]> copies;
  std::conditional_t<Config::kByTokens, TokenSources, Nothing> sources;
  std::conditional_t<Config::kMerges, sm90::MergeBegun, Nothing> merge;
  std::conditional_t<Config::kTurns, Turns<Config>, Nothing> turns;
};

// DeepSeek's 576/512: 8 KB of Q, 5 x 36 KB of KV, 8 KB of P, 16 KB of outputs, and 3 KB of the rest (token by
// token 5 KB).
inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace flashlatent::mla_64_roles
