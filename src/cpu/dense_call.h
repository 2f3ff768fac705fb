// A call's tensors and the index arithmetic on them: which tokens a tile of query rows sees, and where its
// rows are read and written.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/e4m3.h"
#include "core/element.h"
#include "core/query_parts.h"
#include "cpu/block_math.h"
#include "cpu/dense.h"
#include "cpu/kv_rows.h"
#include "cpu/rows.h"
#include "cpu/tokens.h"
#include "cpu/workspace.h"
#include "plan/token_lists.h"

namespace flashlatent::cpu {

/// The query rows of one item, KV head and tile. If the item stands for a query token that a ragged request
/// does not have, there are no rows, and `first_token` is one that the request lacks.
struct RowTile {
  int request;
  int first_token;  // of the item
  int tokens;       // its query tokens
  int kv_head;
  int first;  // of the item's rows for this KV head
  int rows;
  int item = 0;
};

/// Query rows of several requests that attend to their shared prefix.
struct PrefixTile {
  const std::int32_t* requests;
  int reader;  // the request whose pages are read
  int kv_head;
  int rows;
};

/// The tokens that a tile sees, of one list or of two.
struct Reach {
  int length;      // of the request
  int origin;      // the token where its block 0 begins
  int begin, end;  // no row sees tokens outside
  TokenSpan lists[2] = {};
};

/// See the head of this file.
class DenseCall {
 public:
  explicit DenseCall(const DecodeCall& call)
      : problem_(call.problem),
        inputs_(call.inputs),
        outputs_(call.outputs),
        max_logits_(call.max_logits),
        g_(call.geometry),
        visibility_{problem_.options.window, problem_.options.causal},
        held_(call.held),
        union_lengths_(schedule::union_lengths(lengths_of(problem_, inputs_), call.held)),
        tokens_(TokenSource::first(problem_, inputs_)),
        extra_tokens_(TokenSource::extra(problem_, inputs_)),
        rows_(problem_, inputs_),
        rope_(query_parts::rope_of(problem_, inputs_)),
        key_scale_(latent() ? inputs_.kv_scale : inputs_.key_scale),
        value_scale_(latent() ? inputs_.kv_scale : inputs_.value_scale),
        group_(problem_.query.heads / problem_.cache.heads),
        row_tiles_((problem_.rows_per_kv_head() + kTileRows - 1) / kTileRows) {}

  /// Lengths of requests; where ranks share contexts, of the tokens that are here.
  const std::int32_t* lengths() const { return held_.lengths != nullptr ? held_.lengths : contexts(); }
  const std::int32_t* contexts() const {
    const bool sparse = problem_.sparse.enabled;
    return static_cast<const std::int32_t*>((sparse ? inputs_.topk_length : inputs_.cache_seqlens).data);
  }

  /// Lengths of items with two lists.
  const schedule::UnionLengths& union_lengths() const { return union_lengths_; }

  RowTile tile(int item, int round) const {
    const int s_q = problem_.query.tokens;
    RowTile tile{item, 0, s_q, round / row_tiles_, round % row_tiles_ * kTileRows, 0, item};
    if (problem_.token_items()) {
      tile.request = item / s_q;
      tile.first_token = item % s_q;
      tile.tokens = 1;
    }
    if (problem_.query.ragged) find_own_tokens(tile);
    tile.rows = std::clamp(tile.tokens * group_ - tile.first, 0, kTileRows);
    return tile;
  }

  /// All rows of one request and KV head, as a tile.
  RowTile request_tile(int request, int kv_head) const {
    return {request, 0, problem_.query.tokens, kv_head, 0, problem_.rows_per_kv_head()};
  }

  int token(const RowTile& tile, int row) const { return tile.first_token + (tile.first + row) / group_; }
  int head(const RowTile& tile, int row) const { return tile.kv_head * group_ + (tile.first + row) % group_; }

  /// Starts a tile without a block in `memory`. `scratch` is free afterwards.
  template <class Tile>
  TileState start(const Tile& tile, float* memory, std::uint8_t* scratch) const {
    QueryRow query_rows[kTileRows];
    float factors[kTileRows];
    const bool expand = problem_.query.e4m3 || problem_.fp8_products();
    auto* rows = reinterpret_cast<std::uint16_t*>(scratch);
    for (int row = 0; row < tile.rows; ++row) {
      const QueryPlace place = query_place(tile, row);
      query_rows[row] = query_row<std::uint16_t>(place);
      if (!expand) continue;
      factors[row] = expand_query(place, rows);
      query_rows[row] = {rows, rows + first_columns()};
      rows += problem_.cache.qk_dim;
    }
    return start_tile(memory, spec(tile.kv_head), query_rows, tile.rows, expand ? factors : nullptr);
  }

  /// What all tiles have in common. The scale of e4m3 keys is applied to scores.
  TileSpec spec(int kv_head) const {
    const auto& [query, cache, sparse, options] = problem_;
    return {.dtype = cache.dtype,
            .qk_dim = cache.qk_dim,
            .v_dim = cache.v_dim,
            .first_columns = first_columns(),
            .latent = latent(),
            .scale = options.softmax_scale * scale_of(key_scale_, kv_head),
            .soft_cap = options.separate.soft_cap,
            .alibi = options.separate.alibi,
            .e4m3_products = problem_.fp8_products()};
  }

  void set_slopes(const RowTile& tile, const TileState& state) const {
    if (!problem_.options.separate.alibi) return;
    const auto* slopes = static_cast<const float*>(inputs_.alibi_slopes.data);
    for (int row = 0; row < tile.rows; ++row) state.slopes[row] = slopes[head(tile, row)];
  }

  /// The clamped length of a request in this call.
  int length_of(int request) const { return std::clamp(lengths()[request], 0, max_tokens(problem_)); }

  /// The tokens of an item that a tile sees, and where its blocks begin. `planned`: the tokens that the plan
  /// counts. `prefix`: tokens that the tile does not attend to itself: 0, or all tokens before the planned
  /// ones.
  Reach reach(const RowTile& tile, int planned, int prefix) const {
    if (problem_.cache.extra.enabled) {
      return {planned,
              0,
              0,
              planned,
              {schedule::span_of(g_, union_lengths_, 0, tile.item),
               schedule::span_of(g_, union_lengths_, 1, tile.item)}};
    }
    // With a window the plan counts the last tokens of a request: no query token sees those before.
    const int length = problem_.options.window == 0 ? prefix + planned : length_of(tile.request);
    const TokenSpan own = seen_by_some(tile, length);
    return {length, length - planned, std::max(own.begin, prefix), own.end};
  }

  /// The tokens of block number `index` of the tile's item.
  Tokens tokens(const RowTile& tile, const Reach& reach, int index) const {
    if (problem_.cache.extra.enabled) return union_tokens(tile, reach, index);
    // In 64 bits: the block after the last one of the longest request may begin past 2^31.
    const std::int64_t first = reach.origin + std::int64_t{index} * kBlockTokens;
    const std::int64_t begin = std::max<std::int64_t>(first, reach.begin);
    const std::int64_t end = std::min<std::int64_t>(first + kBlockTokens, reach.end);
    if (begin >= end) return {};
    return tokens_.block(tile.request, tile.first_token, tile.kv_head, static_cast<int>(begin),
                         static_cast<int>(end));
  }

  /// A block of a prefix, which all rows of the tile see.
  Tokens prefix_tokens(const PrefixTile& tile, int block) const {
    return tokens_.block(tile.reader, 0, tile.kv_head, block * kBlockTokens, (block + 1) * kBlockTokens);
  }

  /// Sets which tokens of the block each row sees, and their distances from the request's last token.
  void set_visible(const RowTile& tile, int length, const Tokens& tokens, Block& block) const {
    if (problem_.cache.extra.enabled) {  // an item has one query token, which sees all tokens of its lists
      std::fill_n(block.seen, tile.rows, TokenSpan{0, tokens.count});
      return;
    }
    auto place_of = [&tokens](std::int64_t position) {
      return static_cast<int>(std::lower_bound(tokens.positions, tokens.positions + tokens.count, position) -
                              tokens.positions);
    };
    for (int row = 0; row < tile.rows; ++row) {
      const TokenSpan of_row = seen(tile, length, row);
      block.seen[row] = {of_row.begin == 0 ? 0 : place_of(of_row.begin), place_of(of_row.end)};
    }
    if (!problem_.options.separate.alibi) return;
    const std::int64_t last = (g_.shard.is_all() ? length : contexts()[tile.request]) - std::int64_t{1};
    for (int t = 0; t < tokens.count; ++t) {
      block.distances[t] = static_cast<float>(g_.shard.position(tokens.positions[t]) - last);
    }
  }

  void fetch(const Tokens& tokens, const Tokens& next, std::uint8_t* scratch, Block& block,
             Block& ahead) const {
    rows_.fetch(tokens, next, scratch, block, ahead);
  }

  void write_lse(const RowTile& tile, int row, float value) const {
    write_number(outputs_.lse, tile, row, value == -kInfinity ? problem_.options.empty_lse : value);
  }

  /// Writes out = factor * values with the sink applied, lse, and the largest score if it is wanted.
  void write_row(const RowTile& tile, int row, const float* values, float factor, float lse,
                 float max) const {
    write_lse(tile, row, lse);
    // NaN does not raise a maximum, so a NaN score shows in lse alone.
    if (max_logits_.present()) write_number(max_logits_, tile, row, std::isnan(lse) ? lse : max);
    factor *= scale_of(value_scale_, tile.kv_head);
    if (problem_.options.attn_sink && lse != -kInfinity) {
      factor /= 1 + std::exp(static_cast<const float*>(inputs_.attn_sink.data)[head(tile, row)] - lse);
    }
    auto* out = static_cast<std::uint16_t*>(outputs_.out.data) + offset(tile, row, outputs_.out);
    for (int d = 0; d < problem_.cache.v_dim; ++d)
      out[d] = from_float(values[d] * factor, problem_.cache.dtype);
  }

  /// Query tokens that a ragged request does not have exist in lse alone.
  void write_missing_rows(const RowTile& tile) const {
    const int all = std::min(problem_.rows_per_kv_head() - tile.first, kTileRows);
    for (int row = tile.rows; row < all; ++row) write_lse(tile, row, -kInfinity);
  }

 private:
  /// Writes to a tensor that is fp32 (batch, h_q, s_q).
  void write_number(const TensorView& view, const RowTile& tile, int row, float value) const {
    const auto& s = view.strides;
    static_cast<float*>(view.data)[tile.request * s[0] + head(tile, row) * s[1] + token(tile, row) * s[2]] =
        value;
  }

  /// Block number `index` of an item with two lists (plan/token_lists.h).
  Tokens union_tokens(const RowTile& tile, const Reach& reach, int index) const {
    const schedule::ListBlock block = schedule::list_block(g_, reach.lists[0].count(), index);
    const TokenSpan& span = reach.lists[block.list];
    const std::int64_t begin = std::int64_t{span.begin} + block.begin;
    const std::int64_t end = std::min<std::int64_t>(begin + kBlockTokens, span.end);
    if (begin >= end) return {};
    const TokenSource& source = block.list == 0 ? tokens_ : extra_tokens_;
    return source.block(tile.request, tile.first_token, tile.kv_head, static_cast<int>(begin),
                        static_cast<int>(end));
  }

  /// What a row sees. `length`: the request's tokens that are here.
  TokenSpan seen(const RowTile& tile, int length, int row) const {
    const int later = visibility_.later(tile.tokens, token(tile, row));
    if (g_.shard.is_all()) return visibility_.seen(length, later);
    const TokenSpan span = held_.spans[std::int64_t{tile.request} * problem_.query.tokens + later];
    return {span.begin, std::min(span.end, length)};
  }

  /// From the first to the last token that some row of the tile sees.
  TokenSpan seen_by_some(const RowTile& tile, int length) const {
    return {seen(tile, length, 0).begin, seen(tile, length, tile.rows - 1).end};
  }

  bool latent() const { return problem_.cache.layout == KvLayout::kLatent; }

  /// The scale of e4m3 elements: one for the tensor, or one for each head.
  static float scale_of(const ConstTensorView& scale, int head) {
    if (!scale.present()) return 1;
    return static_cast<const float*>(scale.data)[scale.shape[0] > 1 ? head : 0];
  }

  /// Where a query row begins, in elements from the begin of each tensor of the query.
  struct QueryPlace {
    std::int64_t first, rope;
    int head;
  };
  QueryPlace query_place(const RowTile& tile, int row) const {
    return {offset(tile, row, inputs_.q), has_rope() ? offset(tile, row, rope_) : 0, head(tile, row)};
  }
  QueryPlace query_place(const PrefixTile& tile, int row) const {
    const int each = problem_.rows_per_kv_head();
    return query_place(request_tile(tile.requests[row / each], tile.kv_head), row % each);
  }

  bool has_rope() const { return rope_.present(); }
  int first_columns() const { return query_parts::first_columns(problem_.cache.qk_dim); }
  int rope_columns() const { return problem_.cache.qk_dim - first_columns(); }
  template <class Element>
  struct QueryElements {
    const Element *first, *rope;
    // NOLINTNEXTLINE(google-explicit-constructor)
    operator QueryRow() const { return {first, rope}; }
  };
  template <class Element>
  QueryElements<Element> query_row(const QueryPlace& place) const {
    return {static_cast<const Element*>(inputs_.q.data) + place.first,
            has_rope() ? static_cast<const Element*>(rope_.data) + place.rope : nullptr};
  }

  /// Converts a row of e4m3 queries to bf16; returns its scale.
  float expand_query(const QueryPlace& place, std::uint16_t* row) const {
    if (problem_.query.e4m3) {
      const auto from = query_row<std::uint8_t>(place);
      expand_e4m3(from.first, first_columns(), Dtype::kBF16, row);
      if (has_rope()) expand_e4m3(from.rope, rope_columns(), Dtype::kBF16, row + first_columns());
      return scale_of(inputs_.q_scale, place.head);
    }
    const auto from = query_row<std::uint16_t>(place);
    return e4m3::power_of_two(round_query(from.first, first_columns(), from.rope, rope_columns(), row));
  }

  /// Sets the tile's query tokens to those that a ragged request has.
  void find_own_tokens(RowTile& tile) const {
    const int count = begins()[tile.request + 1] - begins()[tile.request], most = problem_.query.tokens;
    if (!problem_.token_items()) {
      tile.tokens = count;
      return;
    }
    const int token = schedule::ragged_token(most, count, tile.first_token);
    tile.tokens = token < 0 ? 0 : 1;
    tile.first_token = token < 0 ? token + most : token;
  }

  const std::int32_t* begins() const { return static_cast<const std::int32_t*>(inputs_.cu_seqlens_q.data); }

  std::int64_t offset(const RowTile& tile, int row, const ConstTensorView& view) const {
    const auto& s = view.strides;
    if (problem_.query.ragged)
      return (begins()[tile.request] + token(tile, row)) * s[0] + head(tile, row) * s[1];
    return tile.request * s[0] + token(tile, row) * s[1] + head(tile, row) * s[2];
  }

  const DecodeProblem& problem_;
  const DecodeInputs& inputs_;
  const DecodeOutputs& outputs_;
  const TensorView& max_logits_;
  const schedule::Geometry& g_;
  const Visibility visibility_;
  const schedule::HeldTokens held_;
  const schedule::UnionLengths union_lengths_;
  const TokenSource tokens_, extra_tokens_;
  const KvRows rows_;
  const ConstTensorView rope_;  // the query's RoPE columns
  const ConstTensorView &key_scale_, &value_scale_;
  const int group_;
  const int row_tiles_;
};

}  // namespace flashlatent::cpu
