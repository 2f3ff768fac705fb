// A tile of query rows: which rows they are, what they see, and which of them see a token.
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
  // later() and end_in_context() are Visibility::later() and ::end() written out, and all ends are ints: by
  // way of these functions, or of sets returned from branches, ptxas makes other code of gqa_128 and mla_16.
  /// Query tokens after the row's that it does not see.
  __device__ __forceinline__ int later(const DecodeArguments& args, int row) const {
    return args.causal ? tokens - 1 - token(args.query, row) : 0;
  }
  /// In a context that ranks share: the rank's tokens that the row sees.
  __device__ __forceinline__ TokenSpan span(const DecodeArguments& args, int later) const {
    const int2 span = __ldg(reinterpret_cast<const int2*>(args.spans + request * args.spans_stride + later));
    return {span.x, span.y};
  }
  /// The end of what the row sees of a whole context of `length` tokens.
  __device__ __forceinline__ int end_in_context(const DecodeArguments& args, int length, int row) const {
    return args.causal ? length - tokens + token(args.query, row) + 1 : length;
  }
  /// The same, if the rank has `length` tokens.
  __device__ __forceinline__ int end(const DecodeArguments& args, int length, int row) const {
    if (args.spans != nullptr) [[unlikely]]
      return min(length, span(args, later(args, row)).end);
    return end_in_context(args, length, row);
  }
  /// What the row sees. Of a tile's rows the first sees the fewest tokens, the last the most.
  __device__ __forceinline__ TokenPrefix seen_in_context(const DecodeArguments& args, int length,
                                                         int row) const {
    return {end_in_context(args, length, row)};
  }
  __device__ __forceinline__ TokenPrefix seen(const DecodeArguments& args, int length, int row) const {
    return {end(args, length, row)};
  }
  /// What it sees with a window; 0: none.
  __device__ __forceinline__ TokenSpan seen_in_window(const DecodeArguments& args, const int& window,
                                                      int length, int row) const {
    if (args.spans != nullptr) [[unlikely]] {
      const TokenSpan of_rank = span(args, later(args, row));
      return {of_rank.begin, min(length, of_rank.end)};
    }
    return Visibility::last(end_in_context(args, length, row), window);
  }
  /// From the first to the last token that some row of the tile sees.
  __device__ __forceinline__ TokenSpan seen_by_some(const DecodeArguments& args, const int& window,
                                                    int length) const {
    return {seen_in_window(args, window, length, 0).begin,
            seen_in_window(args, window, length, max(rows - 1, 0)).end};
  }
  /// The request's tokens, of those that the rank has, that the row does not see.
  __device__ __forceinline__ int behind(const DecodeArguments& args, int row) const {
    if (args.spans != nullptr) [[unlikely]] {
      const int length = schedule::tokens_of(args.geometry, span(args, 0).end);
      return length - min(length, span(args, later(args, row)).end);
    }
    return -end_in_context(args, 0, row);
  }
  /// The rows of a query token of the request and of those after it.
  __device__ __forceinline__ RowSet rows_from(const QueryArguments& query, int first_query_token) const {
    return {max(first_query_token * query.group.value - first, 0)};
  }
  /// The rows that see `token` of a whole context of `length` tokens, with a causal mask.
  __device__ __forceinline__ RowSet rows_that_see_in_context(const QueryArguments& query, int length,
                                                             int token) const {
    return rows_from(query, Visibility::first_to_see(length, tokens, token));
  }
  /// The same, if the rank has `length` tokens.
  __device__ __forceinline__ RowSet rows_that_see(const DecodeArguments& args, int length, int token) const {
    if (args.spans != nullptr) [[unlikely]] {
      int first_to_see = 0;
#pragma unroll 1
      while (first_to_see < tokens && span(args, tokens - 1 - first_to_see).end <= token) ++first_to_see;
      return rows_from(args.query, first_to_see);
    }
    return rows_that_see_in_context(args.query, length, token);
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
