// From the table's constants and a device's rates to the costs of one call.
#pragma once

#include <cstdint>
#include <string>

#include "cost/table.h"
#include "plan/schedule.h"

namespace flashlatent::cost {

/// Rates of an H200.
struct Rates {
  std::int32_t share = 348;     ///< Bytes in 10 ns: a multiprocessor's share of the memory bandwidth.
  std::int32_t in_calls = 357;  ///< As `share`, as the times of gqa_16's calls show it.
  std::int32_t most = 650;      ///< Bytes in 10 ns that one multiprocessor reads while few others do.
  std::int32_t l2 = 9;          ///< TB/s from L2; 64 requests that share 8,192 tokens took 0.246 ms.
  std::int32_t products = 450;  ///< TFLOP/s of a row tile's products.
};
inline constexpr Rates kRates;
std::string to_string(const Rates& rates);

/// Costs of a call that the device has no room for. Any other kernel is preferred, but the kernel may run if
/// it has no rival or is asked for by name.
inline constexpr schedule::CostModel kNever = {.per_call = 1 << 30};

/// Adds `more` to each field of `costs`.
void add(schedule::CostModel& costs, const schedule::CostModel& more);
/// Nanoseconds that a call saves, where `less` has a negative per_call.
constexpr std::int64_t saved(const schedule::CostModel& less) {
  return -std::int64_t{less.per_call};
}

/// Costs of a team of `team` CTAs that share the blocks of a segment: per_block is divided.
schedule::CostModel by_team(schedule::CostModel costs, int team);

/// Does memory take much longer than a lone CTA's work while all teams read? True on an H100, false on an
/// H200.
constexpr bool memory_binds(const TeamCosts& costs) {
  return 2 * costs.block_streaming > 3 * costs.block_alone;
}

/// Costs of a geometry in which each part is done by a team.
schedule::CostModel of_team_parts(const schedule::Geometry& g, const TeamCosts& costs, int workers);
/// The same where all teams share one request.
schedule::CostModel of_lone_request(schedule::CostModel of_parts, const TeamCosts& costs);

/// Costs where a block of `block_bytes` takes as long as a multiprocessor's share of the bandwidth needs for
/// it. With several row tiles one reads memory; the others find the block in L2, take as long and follow the
/// clock.
schedule::CostModel by_memory(const Costs& costs, double block_bytes, const schedule::Workers& workers,
                              int row_tiles = 1);
/// Time of a block while few others read memory; `block`: its time while all do.
std::int32_t block_alone(std::int32_t block, const schedule::Workers& workers);

/// Costs of gqa_128, which does whole waves of tiles; `costs` are of blocks of 128 tokens and d 64.
schedule::CostModel of_waves(const Costs& costs, const schedule::Geometry& g, int dim,
                             const schedule::Workers& workers);

/// Costs of groups that share a prefix: picoseconds, but for unit_block, which is nanoseconds.
struct PrefixCosts {
  std::int32_t read;        ///< One token that one request reads by itself, from L2.
  std::int32_t tile;        ///< One token of the prefix for one row tile.
  std::int32_t member;      ///< One request's being in a group.
  std::int32_t call;        ///< One call's having groups.
  std::int32_t unit_block;  ///< One block of a unit, nanoseconds.
};
/// `head_elements`: elements of one token's keys, of all KV heads; `tile_rows`: query rows of a tile.
PrefixCosts of_prefixes(double head_elements, int tile_rows, int dim, int block_tokens,
                        const schedule::Workers& workers);

}  // namespace flashlatent::cost
