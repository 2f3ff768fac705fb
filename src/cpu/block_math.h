// Attention of a tile of query rows over one block of tokens, in SIMD with run-time dispatch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashlatent/tensor.h"

namespace flashlatent::cpu {

inline constexpr int kTileRows = 64;
inline constexpr int kBlockTokens = 64;

/// Asks for the cache line at `address`, of the block after this one, in the second-level cache. (To the
/// first level it is half as fast: requests wait for the few buffers that L1 has for misses.)
/// Always inline: GCC drops calls of a function that only fetches, as one without effect.
[[gnu::always_inline]] inline void fetch_ahead(const void* address) {
  __builtin_prefetch(address, 0, 2);
}

/// The live tokens of a block, in order.
struct Block {
  const std::uint16_t* rows[kBlockTokens];    ///< Where each token's cached row, or key, starts.
  const std::uint16_t* values[kBlockTokens];  ///< The same of values; latent: `rows`.
  int tokens;
  int first[kTileRows];           ///< Each query row sees the tokens [first, visible).
  int visible[kTileRows];         ///< At least `first`.
  float distances[kBlockTokens];  ///< From the request's last token to each, not positive. Only for ALiBi.
};

/// What all tiles of a call share.
struct TileSpec {
  Dtype dtype = Dtype::kBF16;
  int qk_dim = 0, v_dim = 0;
  bool latent = true;          ///< A value is the begin of its key's row.
  float scale = 1;             ///< Of scores; then, in this order:
  float soft_cap = 0;          ///< s -> soft_cap * tanh(s / soft_cap), unless 0;
  bool alibi = false;          ///< + TileState::slopes[row] * Block::distances[token].
  bool e4m3_products = false;  ///< P is rounded to e4m3 before it meets V, after it is summed.

  /// Scores change by more than a factor.
  bool transforms() const { return soft_cap != 0 || alibi; }
};

/// The state of one tile of query rows, in memory that the caller owns. Rows are padded to `row_stride` and
/// columns to multiples of 32 floats; padding holds zeros or numbers that nobody reads.
struct TileState {
  TileSpec spec;
  int rows;        ///< Live query rows.
  int row_stride;  ///< rows rounded up to 16.
  int kv_stride;   ///< The larger of qk_dim and v_dim rounded up to 32.
  int out_stride;  ///< v_dim rounded up to 32.

  float* q;       ///< Transposed, (qk_dim, row_stride); few rows: (rows, kv_stride), in their own order.
  float* kv;      ///< (kBlockTokens, kv_stride): the block in fp32, keys and then values.
  float* scores;  ///< (kBlockTokens, row_stride): S, then P; few rows: (rows, kBlockTokens).
  float* out;     ///< (rows, out_stride), not normalised.
  float* max;     ///< (row_stride), of scaled scores.
  float* sum;     ///< (row_stride)
  float* shrink;  ///< (row_stride)
  float* slopes;  ///< (row_stride), for the caller to set if spec.alibi.
};

/// Floats that a TileState needs for these dimensions.
std::size_t tile_floats(int qk_dim, int v_dim);

/// Lays a state out in `memory` (64-byte aligned) and resets it; `query_rows` point at 16-bit elements.
/// `factors`, unless null: one for each query row, by which its elements are multiplied.
TileState start_tile(float* memory, const TileSpec& spec, const std::uint16_t* const* query_rows, int rows,
                     const float* factors = nullptr);

/// Adds one block. `next` is the block that will follow (no tokens: none): its rows may be fetched meanwhile.
void attend_block(const TileState& tile, const Block& block, const Block& next);

}  // namespace flashlatent::cpu
