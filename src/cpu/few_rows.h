// Attention of up to 16 query rows over one block of tokens: bound by the cache's bytes, not by arithmetic.
#pragma once

#include <cstdint>

#include "cpu/block_math.h"

namespace flashlatent::cpu::few_rows {

/// From 17 rows on, whole vectors of rows (block_math.cc) are faster.
inline constexpr int kMaxRows = 16;

/// Fills tile.q, which attend_block alone reads.
void load_queries(const TileState& tile, const std::uint16_t* const* query_rows);

/// cpu::attend_block for tile.rows <= kMaxRows.
void attend_block(const TileState& tile, const Block& block, const Block& next);

}  // namespace flashlatent::cpu::few_rows
