// A tile of query rows: which rows they are, and what they attend to.
#pragma once

#include <cuda_runtime.h>

#include "cuda/sm90/walk/arguments.h"

namespace flashlatent::sm90 {

/// A tile's rows in Q's tensor maps: the request, and the number of the first row (QueryArguments::line).
struct RowsInLine {
  int request, first;
};

/// Query rows of one request: row r of the tile is query token first_token + (first + r) / group and head
/// kv_head * group + (first + r) % group. If each query token attends to its own tokens (indices, an extra
/// cache, a window over a latent cache), each is a request to the plan.
struct RowTile {
  int request;      // of the batch
  int origin;       // where its rows begin, times batch_stride: the request, or if ragged its first token
  int first_token;  // the query token, if it is a request to the plan; else 0
  int tokens;       // s_q of the request; for one query token 1, or 0 if a ragged request lacks it
  int kv_head;
  int first;  // the tile's first row among the request's rows of this KV head
  int rows;   // live rows, 0 (ragged) to geometry.tile_rows

  __device__ __forceinline__ int token(const QueryArguments& query, int row) const {
    return first_token + query.group.quotient(first + row);
  }
  __device__ __forceinline__ int head(const QueryArguments& query, int row) const {
    return kv_head * query.group.value + query.group.remainder(first + row);
  }
  /// Query tokens of the request after the row's query token, which does not see theirs under a causal mask.
  __device__ __forceinline__ int later(const DecodeArguments& args, int row) const {
    return args.causal ? tokens - 1 - token(args.query, row) : 0;
  }
  /// In a context that ranks share: the rank's tokens to which the row attends.
  __device__ __forceinline__ schedule::TokenSpan span(const DecodeArguments& args, int later) const {
    const int2 span = __ldg(reinterpret_cast<const int2*>(args.spans + request * args.spans_stride + later));
    return {span.x, span.y};
  }
  /// Tokens to which the row attends in a whole context of `length` tokens.
  __device__ __forceinline__ int limit_in_context(const DecodeArguments& args, int length, int row) const {
    return args.causal ? length - tokens + token(args.query, row) + 1 : length;
  }
  /// Tokens to which the row attends, if the rank has `length` tokens.
  __device__ __forceinline__ int limit(const DecodeArguments& args, int length, int row) const {
    if (args.spans != nullptr) [[unlikely]]
      return min(length, span(args, later(args, row)).end);
    return limit_in_context(args, length, row);
  }
  /// The rank's tokens of the request to which the row does not attend.
  __device__ __forceinline__ int behind(const DecodeArguments& args, int row) const {
    if (args.spans != nullptr) [[unlikely]] {
      const int length = schedule::tokens_of(args.geometry, span(args, 0).end);
      return length - min(length, span(args, later(args, row)).end);
    }
    return -limit_in_context(args, 0, row);
  }
  /// The first query token of the request that attends to `token` of a whole context of `length` tokens.
  __device__ __forceinline__ int first_to_see_in_context(int length, int token) const {
    return token - length + tokens;
  }
  /// The same, if the rank has `length` tokens.
  __device__ __forceinline__ int first_to_see(const DecodeArguments& args, int length, int token) const {
    if (args.spans != nullptr) [[unlikely]] {
      int first = 0;
#pragma unroll 1
      while (first < tokens && span(args, tokens - 1 - first).end <= token) ++first;
      return first;
    }
    return first_to_see_in_context(length, token);
  }
  /// The rows' place for QueryArguments::rows_in_boxes. Ragged: all requests count as one.
  /// kTokens: see row_tile().
  template <bool kTokens = false>
  __device__ __forceinline__ RowsInLine in_line(const QueryArguments& query) const {
    const bool ragged = query.begins != nullptr;
    const int request = ragged ? 0 : origin;
    const int token = !ragged ? first_token : kTokens ? origin + first_token : origin;
    return {request, (kv_head + token) * query.group.value + first};
  }
};

/// Where a request's query tokens begin (times batch_stride), and their number.
struct RequestTokens {
  int origin, count;
};

__device__ __forceinline__ RequestTokens request_tokens(const QueryArguments& query, int request) {
  if (query.begins == nullptr) return {request, query.tokens};
  // Clamped, so that nothing outside q and out is touched, whatever cu_seqlens_q holds.
  const int begin = __ldg(query.begins + request);
  const int end = min(__ldg(query.begins + request + 1), query.total);
  return {begin, begin < 0 ? 0 : max(0, min(end - begin, query.tokens))};
}

/// For a tile of a ragged request whose query tokens are requests to the plan: sets the query token
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

/// kTokens: may query tokens of ragged requests be requests to the plan?
template <bool kTokens = false>
__device__ __forceinline__ RowTile row_tile(const DecodeArguments& args, int request, int round, int lane) {
  const QueryArguments& query = args.query;
  const int index = round * args.geometry.lanes + lane;
  RowTile tile;
  // With the quotient alone ptxas takes the warps of mla_16's loop for divergent (0.1479 ms, not 0.1471).
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

}  // namespace flashlatent::sm90
