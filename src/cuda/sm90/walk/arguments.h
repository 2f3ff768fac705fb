// Parameters of a decode kernel, in small groups. Strides are in elements.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "core/divisor.h"
#include "core/rotation.h"
#include "cuda/sm90/walk/merge_room.h"
#include "plan/chosen_kernel.h"
#include "plan/token_lists.h"

namespace flashlatent::sm90 {

inline constexpr float kLn2 = 0.69314718055994531F;
inline constexpr float kLog2E = 1.44269504088896341F;

/// Some of the query's columns (core/query_columns.h).
struct QueryPart {
  const void* data;
  std::int64_t batch_stride, token_stride, head_stride;
};

struct QueryArguments {
  QueryPart first, rope;  // one tensor: `rope` has the same strides; without RoPE columns it is not read
  // Ragged: where each request's tokens begin (cu_seqlens_q); otherwise null. If ragged, batch_stride of
  // `first`, `rope` and the output is the stride of a token.
  const std::int32_t* begins;
  int total;          // ragged: tokens of all requests
  int tokens;         // s_q; sparse: 1
  Divisor group;      // query heads of a KV head
  Divisor row_tiles;  // tiles of geometry.tile_rows query rows of a KV head
  // Can TMA boxes load rows? Row x of a request is row line.remainder(x) of line line.quotient(x) of the
  // maps: a line has the heads of a query token, or all rows if these are at equal distances.
  bool rows_in_boxes;
  Divisor line;
  // e4m3: an element is its value times scale[0], or scale[head] with scale_a_head; null: 1.
  bool is_e4m3;
  bool scale_a_head;
  const float* scale;
};

/// The formats that RecordRows (record_rows.cuh) reads.
enum class Record : std::uint8_t { kMxfp8_528, kNvfp4_288, kFp8_528 };

/// One list of tokens of an item (plan/token_lists.h): its cache, and page table or indices. Strides of the
/// cache are in bytes.
struct ListedCache {
  const std::uint8_t* data;
  std::int64_t page_bytes, token_bytes, head_bytes;
  const std::int32_t* entries;
  // from one request to the next, and from one query token to the next
  std::int64_t entries_stride, entries_token_stride;
  int pages;
  Divisor page_size;
  bool indexed;
  Record record;      // for RecordRows ...
  bool scales_apart;  // ... and whether a page's scales follow its data
};

struct CacheArguments {
  const void* data;
  std::int64_t page_stride, token_stride, head_stride;
  // Entries of the page table, or the indices of sparse decode, which each name a token.
  // entries_token_stride: from one query token's indices to the next one's.
  const std::int32_t* entries;
  std::int64_t entries_stride, entries_token_stride;
  bool indexed;
  const std::int32_t* lengths;  // null: all are geometry.max_tokens
  int pages;
  Divisor page_size;
  const float* scale;  // e4m3: of all elements; null: 1
  int box_tokens;      // tokens of one TMA box; divides page_size and 64
  // For loaders that take lists (walk/listed_tokens.cuh), in place of the fields above.
  ListedCache listed[2];
  schedule::UnionLengths list_lengths;
};

struct OutputArguments {
  void* out;
  std::int64_t batch_stride, token_stride, head_stride;
  float* lse;
  std::int64_t lse_batch_stride, lse_head_stride, lse_token_stride;
  const float* sink;  // one for each query head, or null
  float empty_lse;    // lse of a row that attends to nothing
};

/// Partial results. A place (the plan's number) has a tile for each lane: tile_rows rows of d_v (partial.cuh)
/// and their lse.
struct PartialArguments {
  float* out;
  float* lse;
  float2* units;  // fp16: units of each row, behind all values, in memory that fp32 values would take
};

/// For kernels that run the combine step themselves (merge/merge_step.cuh).
struct MergeState;

/// Sparse prefill: the rows' largest scores, written beside their lse. Strides of a query token and of a
/// head.
struct MaxLogits {
  float* data;
  std::int64_t token_stride, head_stride;
};

/// The edges of the layer, for instances that have them in their own passes.
struct EdgeArguments {
  float norm;                   // epsilon; 0: none
  edges::Rotary query, output;  // without positions: none
  std::uint8_t* codes;          // of the FP8 output; null: none
  float* scales;                // one for 128 columns
  std::int64_t code_token_stride, code_group_stride;
  Divisor group_heads;
  int scale_lines;  // of 128 columns, in a group
  std::int64_t tokens, padded_tokens;
};

struct DecodeArguments {
  schedule::Geometry geometry;
  Divisor lanes, sharers;  // geometry.lanes; items of a request, which share a length or have their own
  const schedule::Header* plan_header;
  const schedule::Cut* cuts;
  const schedule::Merge* merges;
  const std::int32_t* successors;  // the request after each in the plan's order; null: + 1
  QueryArguments query;
  CacheArguments cache;
  OutputArguments output;
  PartialArguments partial;
  MergeState* merge_state;  // null: the combine step is a launch of its own
  float scale_log2;         // softmax_scale * log2(e)
  float positive_scale;     // scale_log2, or 1 if that is not > 0: scores are then scaled first
  bool causal;
  // Where ranks share contexts and masks go by a token's position: the rank's tokens that query tokens attend
  // to (plan/held_tokens.h). Otherwise null.
  const TokenSpan* spans;
  int spans_stride;      // query tokens of a request
  MaxLogits max_logits;  // only with schedule::Partition::kTurns
  schedule::ChosenKernel choice;
  EdgeArguments edges;
};

}  // namespace flashlatent::sm90
