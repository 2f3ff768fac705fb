// Partition::kFixedSplits, for batch_invariant: an item is split at every multiple of fixed_split blocks, so
// that its result does not depend on its batch-mates. The line is cut into equal lengths, and each cut is
// rounded to a split: a part is at most one split longer than the ideal.
#pragma once

#include "plan/line.h"

namespace flashlatent::schedule {

/// Upper bounds of merges and of partial results.
FLASHLATENT_HOST_DEVICE std::int64_t fixed_merges(const Geometry& g) {
  return max_blocks(g) > g.fixed_split ? static_cast<std::int64_t>(g.requests) * g.rounds : 0;
}
FLASHLATENT_HOST_DEVICE std::int64_t fixed_partials(const Geometry& g) {
  return fixed_merges(g) * fixed_splits_of(g, max_blocks(g));
}

/// The cut for a point of the line; its `partial` is 0 and is set by fixed_partial().
template <class Lengths>
FLASHLATENT_HOST_DEVICE Cut fixed_cut(const Geometry& g, const LinePoint& point, const Lengths& lengths) {
  if (point.inside == 0) return {point.round, point.request, 0, 0};
  const std::int64_t split_cost =
      g.cost.per_split + static_cast<std::int64_t>(g.fixed_split) * g.cost.per_block;
  const std::int64_t block = (point.inside + split_cost / 2) / split_cost * g.fixed_split;
  return cut_before(g, point, block, blocks_of(g, length_of(g, lengths, point.request)));
}

/// The place of the partial result that a cut begins. partial_prefix[r]: partial results of the requests
/// before r in one round.
FLASHLATENT_HOST_DEVICE std::int32_t fixed_partial(const Geometry& g, const std::int32_t* partial_prefix,
                                                   const Cut& cut) {
  return cut.round * partial_prefix[g.requests] + partial_prefix[cut.request] + cut.block / g.fixed_split;
}

}  // namespace flashlatent::schedule
