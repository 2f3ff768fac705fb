// What a decode kernel is launched with, in small groups. Strides are in elements.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/divisor.h"
#include "plan/schedule.h"

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
  int box_tokens;  // rows of one TMA box: divides page_size and 64
};

struct OutputArguments {
  void* out;
  std::int64_t batch_stride, token_stride, head_stride;
  float* lse;
  std::int64_t lse_batch_stride, lse_head_stride, lse_token_stride;
  const float* sink;  // one a query head, or null
  float empty_lse;    // of a row that attends to nothing
};

/// Partial results: slot-major, then lane; tile_rows rows of d_v (partial.cuh), and their lse.
struct PartialArguments {
  float* out;
  float* lse;
  float2* units;  // of fp16, of each row: behind all values, in the room that fp32 would take
};

/// Of kernels that do the combine step themselves (parts/merge_step.cuh).
struct MergeState;
inline constexpr int kMergeStateBytes = 256;
inline constexpr int kMostMergingCtas = 4095;  // it counts them
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
};

/// A tile's rows in a tensor map of Q: which request, and the first one's place.
struct RowsInLine {
  int request, first;
};

/// A tile of query rows of one request: row r of the tile is query token first_token + (first + r) / group
/// and head kv_head * group + (first + r) % group. Each query token of sparse decode is a request to the
/// plan.
struct RowTile {
  int request;      // of the batch
  int origin;       // where its rows are: times batch_stride (the request, or ragged its first token)
  int first_token;  // sparse: the query token, else 0
  int tokens;       // s_q of the request; sparse: 1
  int kv_head;
  int first;  // of the request's rows for this KV head
  int rows;   // live ones, 0 (ragged) to geometry.tile_rows

  __device__ __forceinline__ int token(const QueryArguments& query, int row) const {
    return first_token + query.group.quotient(first + row);
  }
  __device__ __forceinline__ int head(const QueryArguments& query, int row) const {
    return kv_head * query.group.value + query.group.remainder(first + row);
  }
  /// How many tokens of so many the row attends to.
  __device__ __forceinline__ int limit(const DecodeArguments& args, int length, int row) const {
    return args.causal ? length - tokens + token(args.query, row) + 1 : length;
  }
  /// How many of them any row attends to.
  __device__ __forceinline__ int seen(const DecodeArguments& args, int length) const {
    return min(length, limit(args, length, rows - 1));
  }
  /// Where the rows are if they lie in line (QueryArguments::rows_in_line); ragged, all requests' are one.
  __device__ __forceinline__ RowsInLine in_line(const QueryArguments& query) const {
    const bool ragged = query.begins != nullptr;
    const int request = ragged ? 0 : origin;
    const int token = ragged ? origin : first_token;
    return {request, (kv_head + token) * query.group.value + first};
  }
};

/// Where a request's query tokens begin (times batch_stride), and how many there are.
struct RequestTokens {
  int origin, count;
};

__device__ __forceinline__ RequestTokens request_tokens(const QueryArguments& query, int request) {
  if (query.begins == nullptr) return {request, query.tokens};
  // Whatever cu_seqlens_q says, nothing outside q and out is read or written.
  const int begin = __ldg(query.begins + request);
  const int end = min(__ldg(query.begins + request + 1), query.total);
  return {begin, begin < 0 ? 0 : max(0, min(end - begin, query.tokens))};
}

__device__ __forceinline__ RowTile row_tile(const DecodeArguments& args, int request, int round, int lane) {
  const QueryArguments& query = args.query;
  const int index = round * args.geometry.lanes + lane;
  RowTile tile;
  // By the quotient alone ptxas takes the warps of mma16's loop for divergent (0.1471 -> 0.1479 ms).
  tile.request = args.sharers.value == 1 ? request : args.sharers.quotient(request);
  tile.first_token = request - tile.request * args.sharers.value;
  const RequestTokens own = request_tokens(query, tile.request);
  tile.origin = own.origin;
  tile.tokens = own.count;
  tile.kv_head = query.row_tiles.quotient(index);
  tile.first = query.row_tiles.remainder(index) * args.geometry.tile_rows;
  tile.rows = max(0, min(tile.tokens * query.group.value - tile.first, args.geometry.tile_rows));
  return tile;
}

}  // namespace flashlatent::parts
