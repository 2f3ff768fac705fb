// Partition::kFixedSplits, for batch_invariant: an item is split at every multiple of fixed_split blocks, so
// that its result does not depend on its batch-mates. The line is cut into equal lengths, rounded to a split:
// a part is at most one whole split longer than the ideal.
#pragma once

#include "plan/line.h"

namespace flashlatent::schedule {

/// At most.
FLASHLATENT_HOST_DEVICE std::int64_t fixed_merges(const Geometry& g) {
  return max_blocks(g) > g.fixed_split ? static_cast<std::int64_t>(g.requests) * g.rounds : 0;
}
FLASHLATENT_HOST_DEVICE std::int64_t fixed_partials(const Geometry& g) {
  return fixed_merges(g) * fixed_splits_of(g, max_blocks(g));
}

/// Where a cut at this point falls, without its partial's place.
template <class Lengths>
FLASHLATENT_HOST_DEVICE Cut fixed_cut(const Geometry& g, const LinePoint& point, const Lengths& lengths) {
  if (point.inside == 0) return {point.round, point.request, 0, 0};
  const std::int64_t split_cost =
      g.cost.per_split + static_cast<std::int64_t>(g.fixed_split) * g.cost.per_block;
  const std::int64_t block = (point.inside + split_cost / 2) / split_cost * g.fixed_split;
  return cut_before(g, point, block, blocks_of(g, length_of(g, lengths, point.request)));
}

/// Where the partial result that a cut begins goes. partial_prefix: of one round, those before each request.
FLASHLATENT_HOST_DEVICE std::int32_t fixed_partial(const Geometry& g, const std::int32_t* partial_prefix,
                                                   const Cut& cut) {
  return cut.round * partial_prefix[g.requests] + partial_prefix[cut.request] + cut.block / g.fixed_split;
}

}  // namespace flashlatent::schedule
