// Attention of up to 16 query rows over one block of tokens. It is bound by the cache's bytes, not by
// arithmetic.
#pragma once

#include <cstdint>

#include "cpu/block_math.h"

namespace flashlatent::cpu::few_rows {

/// From 17 rows on block_math.cc, which has rows in the vector's lanes, is faster.
inline constexpr int kMaxRows = 16;

/// Fills tile.q, which only attend_block() reads.
void load_queries(const TileState& tile, const QueryRow* query_rows);

/// cpu::attend_block() for tile.rows <= kMaxRows.
void attend_block(const TileState& tile, const Block& block, const Block& next);

}  // namespace flashlatent::cpu::few_rows
