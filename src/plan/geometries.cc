#include "plan/geometries.h"

#include <algorithm>
#include <cstdint>

#include "core/message.h"
#include "plan/block_cost.h"
#include "plan/fixed_splits.h"
#include "plan/shares_by_length.h"

namespace flashlatent::schedule {

namespace {

/// Is the partition one of kPartitions, and do the other fields suit it?
bool partition_fits(const Geometry& g) {
  const bool has_fixed = g.partition == Partition::kFixedSplits;
  if (name_of(g.partition) == nullptr || has_fixed != (g.fixed_split > 0)) return false;
  if (g.partition == Partition::kWhole) return std::int64_t{g.requests} * g.rounds == g.parts;
  if (g.partition == Partition::kTurns)
    return g.parts <= std::max<std::int64_t>(std::int64_t{g.requests} * g.rounds, 1);
  if (!is_shares(g.partition)) return true;
  if (g.rounds != 1 || g.requests < 1 || g.requests > g.parts) return false;
  if (combines_shares(g.partition) && g.parts < 2 * g.requests) return false;
  return g.partition != Partition::kSharesByLength || (g.requests <= kMostByLength && g.length_sharers == 1);
}

}  // namespace

Status validate(const Geometry& g) {
  if (g.requests < 0 || g.parts < 1 || g.lanes < 1 || g.rounds < 1 || g.block_tokens < 1 ||
      g.max_tokens < 0 || g.fixed_split < 0 || g.length_sharers < 1 || g.lists < 1 || g.lists > 2 ||
      g.cost.per_block < 1 || g.cost.per_split < 0 || g.cost.per_merge < 0 || g.cost.per_block_alone < 0 ||
      g.cost.per_block_near < 0 || g.team < 1 || !partition_fits(g)) {
    return {StatusCode::kInternal, "a kernel's schedule geometry is out of range"};
  }
  // In floating point, because the integers might overflow.
  const double items = static_cast<double>(g.requests) * g.rounds;
  const double cost = items * static_cast<double>(item_cost(g, max_blocks(g)));
  const double partials =
      g.partition == Partition::kFixedSplits ? items * fixed_splits_of(g, max_blocks(g)) : 2.0 * g.parts;
  if (cost >= 0x1p62 || partials * g.lanes * g.tile_rows >= 0x1p31) {
    return unsupported("a plan of ", g.requests, " requests x ", g.rounds, " rounds x ", max_blocks(g),
                       " blocks overflows; fewer requests, query rows or max_pages are accepted");
  }
  return {};
}

namespace {

/// The time if each item is cut into equal shares.
std::int64_t split_estimate(const Geometry& g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  return g.cost.per_call + items * item_cost(g, max_blocks(g)) / g.parts + g.cost.per_block +
         g.cost.per_split + g.cost.per_merge;
}

std::int64_t over(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

/// The time if all items stay whole.
std::int64_t whole_estimate(const Geometry& g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  const std::int64_t item = g.cost.per_split + std::int64_t{max_blocks(g)} * whole_block_cost(g);
  return g.cost.per_call + over(items, g.parts) * item;
}

/// For partitions by shapes: the time of the CTA with the longest share.
std::int64_t share_estimate(const Geometry& g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  const std::int64_t blocks = over(over(max_blocks(g), g.parts / items), g.team);
  return g.cost.per_call + g.cost.per_split + blocks * g.cost.per_block * g.team +
         (g.parts > items ? g.cost.per_merge : 0);
}

std::int64_t unbounded_estimate(const Geometry& g) {
  if (g.partition == Partition::kFixedSplits)
    return std::int64_t{g.rounds} * g.lanes * item_cost(g, g.fixed_split);
  if (g.requests == 0) return g.cost.per_call;
  if (is_shares(g.partition) || (g.partition == Partition::kWhole && g.team > 1)) return share_estimate(g);
  if (g.partition == Partition::kTurns) return whole_estimate(g);
  return std::min(whole_estimate(g), split_estimate(g));
}

}  // namespace

std::int64_t estimate(const Geometry& g) {
  const std::int64_t least = g.requests > 0 ? 1 : 0;  // per_call may be negative
  return std::max(unbounded_estimate(g), least);
}

bool stays_whole(const Geometry& g) {
  return g.partition == Partition::kWhole || g.partition == Partition::kTurns ||
         whole_estimate(g) <= split_estimate(g);
}

std::optional<Geometry> whole_items(Geometry g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  if (items < 1 || items > g.parts || g.partition == Partition::kFixedSplits) return std::nullopt;
  g.parts = static_cast<std::int32_t>(items);
  g.partition = Partition::kWhole;
  return g;
}

Geometry turns(Geometry g) {
  g.parts =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(std::int64_t{g.requests} * g.rounds, 1, g.parts));
  g.partition = Partition::kTurns;
  return g;
}

std::optional<Geometry> even_items(Geometry g) {
  if (g.partition != Partition::kLine || g.rounds != 1 || g.requests < 1) return std::nullopt;
  const std::int64_t most = std::int64_t{g.requests} * max_blocks(g);  // shares of one block each
  g.parts = static_cast<std::int32_t>(std::min<std::int64_t>(g.parts, most));
  if (2LL * g.requests > g.parts) return std::nullopt;
  g.partition = Partition::kEvenShares;
  return g;
}

std::optional<Geometry> items_by_length(Geometry g) {
  std::optional<Geometry> even = even_items(g);
  if (!even || g.requests > kMostByLength || g.length_sharers > 1) return std::nullopt;
  even->partition = Partition::kSharesByLength;
  return even;
}

Geometry with_shares_merged_in(Geometry g, std::int32_t per_merge) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  if (items == 0 || g.partition != Partition::kLine || 2 * items > g.parts) return g;
  Geometry shares = g;
  shares.cost.per_merge = per_merge;
  g.cost.per_call += static_cast<std::int32_t>(estimate(shares) - estimate(g));
  return g;
}

bool never_gains_from_splits(const Geometry& g, const Geometry& whole, std::int64_t saved) {
  Geometry lone = g;
  lone.requests = lone.rounds = 1;
  return estimate(whole) <= split_estimate(lone) + saved;
}

void set_workers(Geometry& g, int tiles, int workers) {
  int lanes = tiles < workers ? tiles : workers;
  while (lanes > 1 && (tiles % lanes != 0 || 10 * (workers / lanes) * lanes < 9 * workers)) --lanes;
  g.lanes = lanes > 0 ? lanes : 1;
  g.rounds = tiles > 0 ? (tiles + g.lanes - 1) / g.lanes : 1;
  g.parts = workers / g.lanes > 0 ? workers / g.lanes : 1;
}

}  // namespace flashlatent::schedule
