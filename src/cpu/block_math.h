// Attention of a tile of query rows over one block of tokens, in SIMD with run-time dispatch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/visible.h"
#include "flashlatent/tensor.h"

namespace flashlatent::cpu {

inline constexpr int kTileRows = 64;
inline constexpr int kBlockTokens = 64;

/// Prefetches the cache line at `address`, of the next block, into the second-level cache. The first level
/// would be half as fast: its few miss buffers fill up. Always inline, because GCC drops calls of a function
/// that only prefetches.
[[gnu::always_inline]] inline void fetch_ahead(const void* address) {
  __builtin_prefetch(address, 0, 2);
}

/// The live tokens of a block, in order.
struct Block {
  const std::uint16_t* rows[kBlockTokens];    ///< The begin of each token's cached row, or key.
  const std::uint16_t* values[kBlockTokens];  ///< The begin of each token's value; latent: `rows`.
  int tokens;
  TokenSpan seen[kTileRows];      ///< What query rows see of them; `end` is at least `begin`.
  float distances[kBlockTokens];  ///< From the request's last token to each token, not positive. ALiBi only.

  /// What the rows [row, row + rows) all see; `end` is at least `begin`.
  TokenSpan seen_by_all(int row, int rows) const {
    TokenSpan all = seen[row];
    for (int r = row + 1; r < row + rows; ++r) {
      all = {std::max(all.begin, seen[r].begin), std::min(all.end, seen[r].end)};
    }
    return {all.begin, std::max(all.begin, all.end)};
  }
};

/// What all tiles of a call have in common.
struct TileSpec {
  Dtype dtype = Dtype::kBF16;
  int qk_dim = 0, v_dim = 0;
  int first_columns = 0;       ///< Columns of QueryRow::first.
  bool latent = true;          ///< A value is the begin of its key's row.
  float scale = 1;             ///< Scores are multiplied by it; then follow, in this order:
  float soft_cap = 0;          ///< unless 0: s -> soft_cap * tanh(s / soft_cap);
  bool alibi = false;          ///< s + TileState::slopes[row] * Block::distances[token].
  bool e4m3_products = false;  ///< P is rounded to e4m3 after it is summed and before it meets V.

  /// Do scores change by more than a factor?
  bool transforms() const { return soft_cap != 0 || alibi; }
};

/// Where a query row's 16-bit elements are: its first columns, and those after them.
struct QueryRow {
  const std::uint16_t *first, *rope;
};

/// The state of one tile of query rows, in memory that the caller owns. Rows are padded to `row_stride`,
/// columns to multiples of 32 floats. Padding holds zeros, or numbers that are never read.
struct TileState {
  TileSpec spec;
  int rows;        ///< Live query rows.
  int row_stride;  ///< rows rounded up to 16.
  int kv_stride;   ///< The larger of qk_dim and v_dim rounded up to 32.
  int out_stride;  ///< v_dim rounded up to 32.

  float* q;       ///< Transposed, (qk_dim, row_stride); with few rows (rows, kv_stride), not transposed.
  float* kv;      ///< (kBlockTokens, kv_stride): the block in fp32, first its keys, then its values.
  float* scores;  ///< (kBlockTokens, row_stride): S, then P; with few rows (rows, kBlockTokens).
  float* out;     ///< (rows, out_stride), not normalised.
  float* max;     ///< (row_stride): the maximum of scaled scores.
  float* sum;     ///< (row_stride)
  float* shrink;  ///< (row_stride)
  float* slopes;  ///< (row_stride): the caller sets them if spec.alibi.
};

/// Floats that a TileState needs for these dimensions.
std::size_t tile_floats(int qk_dim, int v_dim);

/// Lays out a state in `memory` (64-byte aligned) and resets it. `factors`: null, or one for each query row,
/// which multiplies its elements.
TileState start_tile(float* memory, const TileSpec& spec, const QueryRow* query_rows, int rows,
                     const float* factors = nullptr);

/// Adds one block. `next`: the block that will follow (without tokens: none); its rows may be prefetched.
void attend_block(const TileState& tile, const Block& block, const Block& next);

}  // namespace flashlatent::cpu
