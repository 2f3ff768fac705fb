// Lengths for planning ragged requests whose query tokens are items (token_lists.h). A short request has
// items without a query token; they cost no more than a step of a walk. Walks do not know cu_seqlens_q: they
// yield these items' blocks, and kernels leave out items that have no rows. So a plan stays right for other
// cu_seqlens_q.
#pragma once

#include "plan/token_lists.h"

namespace flashlatent::schedule {

/// Lengths of items with two lists, and where each request's query tokens begin.
struct RaggedLengths {
  UnionLengths lists;
  const std::int32_t* begins;
};

/// Does the item, one of length_sharers a request, have a query token?
FLASHLATENT_HOST_DEVICE bool has_query_token(const Geometry& g, const RaggedLengths& lengths,
                                             std::int32_t item) {
  const std::int32_t most = g.length_sharers, request = most == 1 ? item : item / most;
  const std::int32_t count = lengths.begins[request + 1] - lengths.begins[request];
  return ragged_token(most, count < 0 ? 0 : count < most ? count : most, item - request * most) >= 0;
}

FLASHLATENT_HOST_DEVICE std::int32_t length_of(const Geometry& g, const RaggedLengths& lengths,
                                               std::int32_t item) {
  return has_query_token(g, lengths, item) ? length_of(g, lengths.lists, item) : 0;
}

/// The cost of an item.
template <class Lengths>
FLASHLATENT_HOST_DEVICE std::int64_t cost_of_item(const Geometry& g, const Lengths& lengths,
                                                  std::int32_t item) {
  return item_cost(g, blocks_of(g, length_of(g, lengths, item)));
}
/// A walk's step takes some 100 ns; the begin and end of a segment 1.5 to 2 us.
FLASHLATENT_HOST_DEVICE std::int64_t cost_of_item(const Geometry& g, const RaggedLengths& lengths,
                                                  std::int32_t item) {
  if (!has_query_token(g, lengths, item)) return g.cost.per_split / 16;
  return item_cost(g, blocks_of(g, length_of(g, lengths.lists, item)));
}

/// Does every item cost at least per_split? Packing (packing.h) and cheaper whole items (whole_block_cost())
/// rely on it.
template <class Lengths>
inline constexpr bool kCostsSegments = true;
template <>
inline constexpr bool kCostsSegments<RaggedLengths> = false;

}  // namespace flashlatent::schedule
