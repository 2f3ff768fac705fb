// Every byte of shared memory of the trio kernel, once.
#pragma once

#include <type_traits>

#include "cuda/parts/merge_step.cuh"
#include "cuda/parts/segment_list.cuh"
#include "cuda/parts/tile.cuh"
#include "cuda/trio/config.h"

namespace flashlatent::trio {

/// A stage's tokens x 64 columns, swizzled as parts::Tile.
struct alignas(1024) StageTile {
  std::uint8_t bytes[kStageTokens * parts::kRowBytes];
};
template <class Config>
struct Stage {
  StageTile tiles[Config::kQkChunks];
};

/// What the scorer says beside a stage's P, at the same barriers.
struct Statistics {
  int shrinks[64];  // of each row, those of 16 alike: must outputs be multiplied by `factors` first?
  float factors[64];
  // With a segment's last stage:
  float bases[64], sums[64];
  int poisoned;  // is there anything in poison_from?
};

/// How far the copies of KV have been worked out.
struct Cursor {
  const std::int32_t* entries;  // of the item's request
  int begin, token, end;        // of its tokens, the first and the next one, and where they end
  int seen;  // tokens that any row of the tile attends to: those behind them are past the end
  int kv_head;
  int item;  // of the list, which has this parity
  std::uint32_t list_parity;
};

/// One copy: a stage's tokens of a page, or half of a tile's query rows.
struct alignas(16) StageCopy {
  int page;   // -1: there is none; of query rows: the request
  int token;  // of the page; or the first row
  int chunk;  // where the KV head begins; of query rows: kOfQuery
  std::uint32_t live;
};
inline constexpr int kOfQuery = -1;

struct NoMerge {};

template <class Config>
struct alignas(1024) SharedMemory {
  parts::Tile q[Config::kQkChunks - Config::kRegisterChunks];  // its last columns
  Stage<Config> kv[Config::kStages];
  parts::Tile p;        // 32 columns a stage
  parts::Tile rows[2];  // of outputs on their way to memory, a warpgroup's each
  Statistics statistics[2];
  alignas(16) std::uint8_t poison_from[Config::kVDim];  // of each column: parts::record_poison()
  int poisoned;
  std::uint32_t live[Config::kStages];  // which of the stage's tokens count
  ptx::Barrier kv_full[Config::kStages], kv_empty[Config::kStages];
  ptx::Barrier p_full[2], p_empty[2];
  parts::SegmentList segments;
  Cursor cursor;
  StageCopy copies[32];
  std::conditional_t<Config::kMerges, parts::MergeBegun, NoMerge> merge;
};

// DeepSeek's 576/512: 8 KB of Q, 5 x 36 KB of KV, 8 KB of P, 16 KB of outputs and 3 KB.
inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace flashlatent::trio
