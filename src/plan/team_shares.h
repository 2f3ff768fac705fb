// Partition::kTeamShares: each item has one part, and the other parts go to items in proportion to their
// costs. The teams of an item take equal shares of its blocks and merge in the kernel; there is no combine
// step. One round.
#pragma once

#include "plan/shares.h"

namespace flashlatent::schedule {

/// The number of parts of the requests before `request`: one each, and their proportion of the other parts.
FLASHLATENT_HOST_DEVICE std::int32_t parts_before(const Geometry& g, const std::int64_t* cost_prefix,
                                                  std::int32_t request) {
  const std::int64_t total = cost_prefix[g.requests], before = cost_prefix[request];
  const int shift = total >> 40 != 0 ? 24 : 0;  // 24: the product might overflow 64 bits
  const std::int64_t others = g.parts - g.requests;
  if (total == 0) return static_cast<std::int32_t>(request + others * request / g.requests);
  return static_cast<std::int32_t>(request + others * (before >> shift) / (total >> shift));
}

/// The share of part k.
FLASHLATENT_HOST_DEVICE ShareCut team_cut(const Geometry& g, const std::int64_t* cost_prefix,
                                          std::int32_t k) {
  if (k >= g.parts) return no_share(g, g.parts);
  std::int32_t low = 0, high = g.requests;  // searched: the last request with at most k parts before it
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (parts_before(g, cost_prefix, middle) <= k) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const std::int32_t first = parts_before(g, cost_prefix, low);
  return {parts_before(g, cost_prefix, low + 1) - first, low, k - first, k};
}

/// The share of part k if a lone request has all parts; no memory is read.
FLASHLATENT_HOST_DEVICE ShareCut lone_team_cut(const Geometry& g, std::int32_t k) {
  return {g.parts, 0, k, k};
}

}  // namespace flashlatent::schedule
