// Partition::kEvenShares: each item has the same number of parts (at least two), whatever the lengths. The
// combine step merges them. Kernels need not read the plan. One round.
#pragma once

#include "plan/shares.h"

namespace flashlatent::schedule {

/// The number of parts of an item. Parts that remain have nothing to do.
FLASHLATENT_HOST_DEVICE std::int32_t even_shares(const Geometry& g) {
  return g.parts / g.requests;
}

/// The share of part k.
FLASHLATENT_HOST_DEVICE ShareCut even_cut(const Geometry& g, std::int32_t k) {
  const std::int32_t shares = even_shares(g);
  if (k >= g.requests * shares) return no_share(g, g.requests * shares);
  return {shares, k / shares, k % shares, k};
}

FLASHLATENT_HOST_DEVICE Merge even_merge(const Geometry& g, std::int32_t request) {
  const std::int32_t shares = even_shares(g);
  return {0, request, request * shares, (request + 1) * shares};
}

}  // namespace flashlatent::schedule
