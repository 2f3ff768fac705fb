// A tile of query rows: which they are, and what they attend to.
#pragma once

#include <cuda_runtime.h>

#include "cuda/parts/arguments.h"

namespace flashlatent::parts {

/// A tile's rows in a tensor map of Q: which request, and the first one's place.
struct RowsInLine {
  int request, first;
};

/// A tile of query rows of one request: row r of the tile is query token first_token + (first + r) / group
/// and head kv_head * group + (first + r) % group. Where query tokens attend to tokens of their own (indices,
/// an extra cache, a window of a latent cache) each of them is a request to the plan.
struct RowTile {
  int request;      // of the batch
  int origin;       // where its rows are: times batch_stride (the request, or ragged its first token)
  int first_token;  // of a query token that is a request to the plan: which; else 0
  int tokens;       // s_q of the request; of a query token: 1, or 0 if a ragged request does not have it
  int kv_head;
  int first;  // of the request's rows for this KV head
  int rows;   // live ones, 0 (ragged) to geometry.tile_rows

  __device__ __forceinline__ int token(const QueryArguments& query, int row) const {
    return first_token + query.group.quotient(first + row);
  }
  __device__ __forceinline__ int head(const QueryArguments& query, int row) const {
    return kv_head * query.group.value + query.group.remainder(first + row);
  }
  /// How many query tokens of the request come after the row's, which it does not see under a causal mask.
  __device__ __forceinline__ int later(const DecodeArguments& args, int row) const {
    return args.causal ? tokens - 1 - token(args.query, row) : 0;
  }
  /// Of a context that ranks share, which tokens of what is here the row attends to.
  __device__ __forceinline__ schedule::TokenSpan span(const DecodeArguments& args, int later) const {
    const int2 span = __ldg(reinterpret_cast<const int2*>(args.spans + request * args.spans_stride + later));
    return {span.x, span.y};
  }
  /// How many tokens of so many the row attends to, of a context that is whole.
  __device__ __forceinline__ int limit_in_context(const DecodeArguments& args, int length, int row) const {
    return args.causal ? length - tokens + token(args.query, row) + 1 : length;
  }
  /// How many tokens of so many that are here the row attends to.
  __device__ __forceinline__ int limit(const DecodeArguments& args, int length, int row) const {
    if (args.spans != nullptr) [[unlikely]]
      return min(length, span(args, later(args, row)).end);
    return limit_in_context(args, length, row);
  }
  /// How many of the request's tokens that are here the row does not attend to.
  __device__ __forceinline__ int behind(const DecodeArguments& args, int row) const {
    if (args.spans != nullptr) [[unlikely]] {
      const int length = schedule::tokens_of(args.geometry, span(args, 0).end);
      return length - min(length, span(args, later(args, row)).end);
    }
    return -limit_in_context(args, 0, row);
  }
  /// The query token of the request that attends to `token` of so many first.
  __device__ __forceinline__ int first_to_see(const DecodeArguments& args, int length, int token) const {
    if (args.spans != nullptr) [[unlikely]] {
      int first = 0;
#pragma unroll 1
      while (first < tokens && span(args, tokens - 1 - first).end <= token) ++first;
      return first;
    }
    return token - length + tokens;
  }
  /// Where the rows are if they lie in line (QueryArguments::rows_in_line); ragged, all requests' are one.
  /// kTokens: as row_tile() has it.
  template <bool kTokens = false>
  __device__ __forceinline__ RowsInLine in_line(const QueryArguments& query) const {
    const bool ragged = query.begins != nullptr;
    const int request = ragged ? 0 : origin;
    const int token = !ragged ? first_token : kTokens ? origin + first_token : origin;
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

/// Of a tile of a ragged request whose query tokens are requests to the plan: which one it is of
/// (plan/token_lists.h), if the request has it.
__device__ __forceinline__ void find_ragged_token(const DecodeArguments& args, RowTile& tile) {
  const QueryArguments& query = args.query;
  const int most = args.sharers.value;
  if (query.begins == nullptr || most == 1) return;
  const int end = min(__ldg(query.begins + tile.request + 1), query.total);
  const int count = tile.origin < 0 ? 0 : max(0, min(end - tile.origin, most));
  const int token = schedule::ragged_token(most, count, tile.first_token);
  tile.first_token = max(token, 0);
  tile.tokens = token < 0 ? 0 : 1;
}

/// kTokens: query tokens of ragged requests may be requests to the plan.
template <bool kTokens = false>
__device__ __forceinline__ RowTile row_tile(const DecodeArguments& args, int request, int round, int lane) {
  const QueryArguments& query = args.query;
  const int index = round * args.geometry.lanes + lane;
  RowTile tile;
  // By the quotient alone ptxas takes the warps of mla_16's loop for divergent (0.1471 -> 0.1479 ms).
  tile.request = args.sharers.value == 1 ? request : args.sharers.quotient(request);
  tile.first_token = request - tile.request * args.sharers.value;
  const RequestTokens own = request_tokens(query, tile.request);
  tile.origin = own.origin;
  tile.tokens = own.count;
  if constexpr (kTokens) find_ragged_token(args, tile);
  tile.kv_head = query.row_tiles.quotient(index);
  tile.first = query.row_tiles.remainder(index) * args.geometry.tile_rows;
  tile.rows = max(0, min(tile.tokens * query.group.value - tile.first, args.geometry.tile_rows));
  return tile;
}

}  // namespace flashlatent::parts
