// What a decode kernel is launched with, in small groups. Strides are in elements.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "core/divisor.h"
#include "cuda/parts/merge_room.h"
#include "plan/token_lists.h"

namespace flashlatent::parts {

inline constexpr float kLn2 = 0.69314718055994531F;
inline constexpr float kLog2E = 1.44269504088896341F;

struct QueryArguments {
  const void* data;
  std::int64_t batch_stride, token_stride, head_stride;
  // Ragged: where each request's tokens begin among all (cu_seqlens_q), else null. batch_stride, here and of
  // the output, is then a token's.
  const std::int32_t* begins;
  int total;          // ragged: tokens of all requests
  int tokens;         // s_q; sparse: 1
  Divisor group;      // query heads a KV head
  Divisor row_tiles;  // tiles of geometry.tile_rows query rows a KV head
  bool rows_in_line;  // a request's rows lie head_stride apart, those of a tile one after another
  // Of e4m3: an element is its value times scale[0], or the head's; null: 1.
  bool is_e4m3;
  bool scale_a_head;
  const float* scale;
};

/// Where tokens are of one of the lists that a request attends to (plan/token_lists.h): a cache, and its page
/// table or indices. Strides of the cache are in bytes.
struct ListedCache {
  const std::uint8_t* data;
  std::int64_t page_bytes, token_bytes, head_bytes;
  const std::int32_t* entries;
  std::int64_t entries_stride, entries_token_stride;  // from a request's, and from a query token's
  int pages;
  Divisor page_size;
  bool indexed;
};

struct CacheArguments {
  const void* data;
  std::int64_t page_stride, token_stride, head_stride;
  // Entries that say where tokens are: of the page table, or the indices of sparse decode, which name a token
  // each. token_stride counts from one query token's indices to the next one's.
  const std::int32_t* entries;
  std::int64_t entries_stride, entries_token_stride;
  bool indexed;
  const std::int32_t* lengths;  // null: all are geometry.max_tokens
  int pages;
  Divisor page_size;
  const float* scale;  // e4m3: of all elements; null: 1
  int box_tokens;      // rows of one TMA box: divides page_size and 64
  // Of loaders that take lists (parts/listed_tokens.cuh), in place of all that is above.
  ListedCache listed[2];
  schedule::UnionLengths list_lengths;
};

struct OutputArguments {
  void* out;
  std::int64_t batch_stride, token_stride, head_stride;
  float* lse;
  std::int64_t lse_batch_stride, lse_head_stride, lse_token_stride;
  const float* sink;  // one a query head, or null
  float empty_lse;    // of a row that attends to nothing
};

/// Partial results: place by place as the plan numbers them, then lane; tile_rows rows of d_v (partial.cuh),
/// and their lse.
struct PartialArguments {
  float* out;
  float* lse;
  float2* units;  // of fp16, of each row: behind all values, in the room that fp32 would take
};

/// Of kernels that do the combine step themselves (parts/merge_step.cuh).
struct MergeState;

/// Of sparse prefill: the rows' largest scores, beside their lse. Strides from a query token's, and from a
/// head's.
struct MaxLogits {
  float* data;
  std::int64_t token_stride, head_stride;
};

struct DecodeArguments {
  schedule::Geometry geometry;
  Divisor lanes, sharers;  // geometry.lanes, geometry.length_sharers
  const schedule::Header* plan_header;
  const schedule::Cut* cuts;
  const schedule::Merge* merges;
  const std::int32_t* successors;  // the request after each in the plan's order, or null
  QueryArguments query;
  CacheArguments cache;
  OutputArguments output;
  PartialArguments partial;
  MergeState* merge_state;  // null: the combine step is another launch's
  float scale_log2;         // softmax_scale * log2(e)
  bool causal;
  // Where ranks share contexts and masks go by a token's place there: what query tokens attend to of what is
  // here (plan/held_tokens.h). Else null.
  const schedule::TokenSpan* spans;
  int spans_stride;      // query tokens of a request
  MaxLogits max_logits;  // only where items come in turn (schedule::Partition::kTurns)
};

}  // namespace flashlatent::parts
