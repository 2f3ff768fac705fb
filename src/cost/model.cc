#include "cost/model.h"

#include <algorithm>
#include <cmath>

namespace flashlatent::cost {

namespace {

// Blocks of a CTA that are loaded ahead: the later ones of these are not waited for.
constexpr int kFewBlocks = 4;
constexpr std::int32_t kPicoseconds = 1000;

/// Time of a block by a team; `blocks`: the most that one CTA of the team has.
std::int32_t team_block(const schedule::Geometry& g, const TeamCosts& costs, std::int64_t blocks,
                        int workers) {
  // A CTA with fewer blocks than the most ends earlier, so about this many CTAs read memory all the time.
  const std::int64_t all = std::int64_t{g.requests} * schedule::max_blocks(g) * g.lanes;
  // If memory binds by far, the last blocks of a lone request, which only some CTAs have, add no time.
  const bool last_counts = !memory_binds(costs) || g.requests > 1;
  const std::int64_t busy = all / std::max<std::int64_t>(last_counts ? blocks : blocks + 1, 1);
  const int ctas = static_cast<int>(std::min<std::int64_t>({busy, g.parts * g.lanes * g.team, workers}));
  const int shared = costs.block_streaming * ctas / std::max(workers, 1);
  if (blocks > kFewBlocks && g.lanes == 1) return std::max(std::max(costs.block_alone, shared) / g.team, 1);
  // With several row tiles only one CTA of a lane group waits for memory; the others find the block in L2.
  const int here = blocks > kFewBlocks ? std::max(costs.block_here, shared / g.lanes) : costs.block_here;
  return std::max(here / g.team, 1);
}

/// The table's per_block is of 128 tokens and d 64; time is proportional to both.
constexpr std::int32_t scaled_block(std::int32_t per_block, int dim, int block_tokens) {
  return per_block * dim / 64 * block_tokens / 128;
}

}  // namespace

void add(schedule::CostModel& costs, const schedule::CostModel& more) {
  costs.per_block += more.per_block;
  costs.per_split += more.per_split;
  costs.per_call += more.per_call;
  costs.per_merge += more.per_merge;
  costs.per_block_alone += more.per_block_alone;
  costs.per_block_near += more.per_block_near;
}

schedule::CostModel by_team(schedule::CostModel costs, int team) {
  costs.per_block = std::max(costs.per_block / team, 1);
  return costs;
}

schedule::CostModel of_team_parts(const schedule::Geometry& g, const TeamCosts& costs, int workers) {
  const std::int64_t blocks = schedule::max_blocks(g) / (g.parts / g.requests) / g.team;
  const std::int32_t block = team_block(g, costs, blocks, workers);
  // The plan is told that a segment costs less than half a block: each team then gets as many blocks as the
  // others, and no CTA has more than one block above the rest.
  return {.per_block = block,
          .per_split = std::max(block / 4, 1),
          .per_call = costs.call,
          .per_merge = g.lanes == 1 && g.parts < 2 * g.requests ? costs.lone_merge : costs.shared_merge};
}

schedule::CostModel of_lone_request(schedule::CostModel of_parts, const TeamCosts& costs) {
  of_parts.per_merge = std::max(of_parts.per_merge + costs.lone_request, 0);
  return of_parts;
}

schedule::CostModel by_memory(const Costs& of_h200, double block_bytes, const schedule::Workers& workers,
                              int row_tiles) {
  schedule::CostModel costs = of_h200.on(workers);
  const auto tiles = static_cast<float>(row_tiles);
  const float factor = (workers.memory + (tiles - 1) * workers.clock) / tiles;
  const double of_share = block_bytes / (kRates.share / 10.0);
  costs.per_block = std::max(1, static_cast<std::int32_t>(of_share * factor));
  const auto block_of_h200 = std::max(1, static_cast<std::int32_t>(of_share));
  if (workers.costs != nullptr) return costs;  // segments and merges as the device's own table has them
  costs.per_split = as_blocks(of_h200.beside.per_split, costs.per_block, block_of_h200);
  costs.per_merge = as_blocks(of_h200.beside.per_merge, costs.per_block, block_of_h200);
  return costs;
}

std::int32_t block_alone(std::int32_t block, const schedule::Workers& workers) {
  const auto on_h200 = static_cast<std::int32_t>(static_cast<float>(block) / workers.memory);
  return std::max(1, scaled(on_h200 * kRates.share / kRates.most, workers.clock));
}

schedule::CostModel of_waves(const Costs& of_h200, const schedule::Geometry& g, int dim,
                             const schedule::Workers& workers) {
  const schedule::CostModel costs = of_h200.on(workers);
  const std::int32_t block = scaled_block(costs.per_block, dim, g.block_tokens);
  if (g.fixed_split > 0) {
    // gqa_16 is compared by one of its splits, 2,048 tokens, so this is the cost of as many tokens.
    return {.per_block = std::max(block * (2048 / g.block_tokens) / g.fixed_split, 1),
            .per_split = costs.per_split};
  }
  if (g.requests == 0) return {.per_block = block, .per_split = costs.per_split};
  const double tiles = static_cast<double>(g.requests) * g.lanes;
  const double waves = std::ceil(tiles / std::max(workers.count, 1)) / g.requests;
  const auto share = [&](std::int32_t cost) {
    return std::max(static_cast<std::int32_t>(std::min(cost * waves, 1e9)), 1);
  };
  return {.per_block = share(block), .per_split = share(costs.per_split)};
}

PrefixCosts of_prefixes(double head_elements, int tile_rows, int dim, int block_tokens,
                        const schedule::Workers& workers) {
  constexpr Kernel kKernel = Kernel::kGqa128;
  constexpr Situation kShared = Cut::kSharedPrefix;
  const auto picoseconds = [](double value, float factor) {
    return std::max(1, static_cast<std::int32_t>(value * factor));
  };
  const schedule::CostModel unit = of(kKernel, kShared).on(workers);
  return {.read = picoseconds(4 * head_elements / kRates.l2, workers.clock),
          .tile = picoseconds(4 * tile_rows * head_elements / kRates.products, workers.products),
          .member = of(kKernel, kShared).per_member_on(workers) * kPicoseconds,
          .call = unit.per_call * kPicoseconds,
          .unit_block = scaled_block(unit.per_block, dim, block_tokens)};
}

}  // namespace flashlatent::cost
