// How costs make a call's costs: what is arithmetic on them, and on a device's rates.
#pragma once

#include <cstdint>
#include <string>

#include "cost/table.h"
#include "plan/schedule.h"

namespace flashlatent::cost {

/// What an H200 can do.
struct Rates {
  std::int32_t share = 348;     ///< Bytes in 10 ns: a multiprocessor's share of the memory bandwidth.
  std::int32_t most = 650;      ///< The same if few others read: the most that it can.
  std::int32_t l2 = 9;          ///< TB/s from L2 (64 x 8,192 tokens of a shared prefix: 0.246 ms).
  std::int32_t products = 450;  ///< TFLOP/s of a tile's products.
};
inline constexpr Rates kRates;
std::string to_string(const Rates& rates);

/// Costs of a call that no device has room for.
inline constexpr schedule::CostModel kNever = {.per_call = 1 << 30};

/// With what a call takes more besides.
void add(schedule::CostModel& costs, const schedule::CostModel& more);
/// What a call takes less by those: nanoseconds.
constexpr std::int64_t saved(const schedule::CostModel& less) {
  return -std::int64_t{less.per_call};
}

/// Where a team shares a segment's blocks: what a block takes it.
schedule::CostModel by_team(schedule::CostModel costs, int team);

/// Does memory bind teams by far where all of them read? On an H100, not on an H200.
constexpr bool memory_binds(const TeamCosts& costs) {
  return 2 * costs.block_streaming > 3 * costs.block_alone;
}

/// Of a schedule of these parts, each a team's.
schedule::CostModel of_team_parts(const schedule::Geometry& g, const TeamCosts& costs, int workers);
/// Of one whose teams share a lone request.
schedule::CostModel of_lone_request(schedule::CostModel of_parts, const TeamCosts& costs);

/// Where a block of so many bytes takes as long as a multiprocessor's share of the bandwidth gives it. Of
/// several row tiles all but one find it in L2, which takes as long and follows the clock.
schedule::CostModel by_memory(const Costs& costs, double block_bytes, const schedule::Workers& workers,
                              int row_tiles = 1);
/// What a block takes where few others read memory, if it takes so long where all do.
std::int32_t block_alone(std::int32_t block, const schedule::Workers& workers);

/// Of whole waves of tiles of `gqa_128`, whose costs are of blocks of 128 tokens and d 64.
schedule::CostModel of_waves(const Costs& costs, const schedule::Geometry& g, int dim,
                             const schedule::Workers& workers);

/// What is counted of groups that share a prefix; picoseconds, but for a unit's block, which is nanoseconds.
struct PrefixCosts {
  std::int32_t read;        ///< A token that a request reads alone, from L2.
  std::int32_t tile;        ///< A tile's token.
  std::int32_t member;      ///< Of a request in a group.
  std::int32_t call;        ///< Of a call that has groups.
  std::int32_t unit_block;  ///< A block of a unit.
};
/// With so many elements a token, of keys of all heads, and rows a tile.
PrefixCosts of_prefixes(double head_elements, int tile_rows, int dim, int block_tokens,
                        const schedule::Workers& workers);

}  // namespace flashlatent::cost
