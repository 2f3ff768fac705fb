// The first way of cutting a line: cuts at ends of items. Decode kernels do not include this file.
//
// Nothing is split if cuts at the nearest ends of items make no part longer than splits and the combine step
// would: 128 equal requests on 132 SMs are 128 parts, not 132 with two segments each. If memory binds, fewer
// requests stay whole, too (whole_block_cost()).
#pragma once

#include "plan/block_cost.h"
#include "plan/line.h"

namespace flashlatent::schedule {

/// The cut if all items stay whole: at the nearest end of an item.
FLASHLATENT_HOST_DEVICE Cut nearest_item_end(const Geometry& g, const std::int64_t* cost_prefix,
                                             const LinePoint& point) {
  const Cut cut{point.round, point.request, 0, 0};
  if (point.inside == 0) return cut;
  const std::int64_t item = cost_prefix[point.request + 1] - cost_prefix[point.request];
  return 2 * point.inside < item ? cut : next_item(g, cut);
}

/// Is this part of whole items, from `begin` to `end`, no longer than a part with splits and a combine step?
/// If this holds for all parts, nothing is split.
FLASHLATENT_HOST_DEVICE bool whole_part_fits(const Geometry& g, const std::int64_t* cost_prefix,
                                             const Cut& begin, const Cut& end) {
  auto position = [&](const Cut& cut) {
    return cost_prefix[g.requests] * cut.round + cost_prefix[cut.request];
  };
  const std::int64_t cost = position(end) - position(begin);
  const std::int64_t split =
      quotient(cost_prefix[g.requests] * g.rounds, g.parts) + g.cost.per_split + g.cost.per_merge;
  if (cost <= split) return true;
  const std::int32_t per_block = whole_block_cost(g);
  if (per_block == g.cost.per_block) return false;
  const std::int64_t items =
      static_cast<std::int64_t>(end.round - begin.round) * g.requests + end.request - begin.request;
  const std::int64_t splits = items * g.cost.per_split;
  const std::int64_t whole = splits + quotient(cost - splits, g.cost.per_block) * per_block;
  // As estimate() compares them, apart from 1/64: long requests gain little from staying whole, and
  // multiprocessors differ.
  return whole + whole / 64 <= split + g.cost.per_block;
}

}  // namespace flashlatent::schedule
