// Partition::kLine: the line of items is cut where balance wants.
//
// The line is cut into `parts` equal lengths, and a cut that falls inside an item is rounded to a block. A
// part is then at most per_block + per_split + 1 longer than the ideal. The per_block is half a block of
// rounding at each end. The per_split is paid again for the item that the part's cut opens, or moves to the
// part when a cut falls before an item's first block. The 1 is because the line is cut in whole units.
//
// Nothing is split where whole items make no part longer (whole_parts.h).
//
// Every cut is a closed form over prefix sums: no loop over requests depends on its previous iteration.
// Packing is the one exception (packing.h): equal cuts split nearly every one of a few hundred requests of
// varied lengths, so up to kMostPacked of them are put on the line in another order.
#pragma once

#include "plan/schedule.h"

namespace flashlatent::schedule {

/// Does the plan hold an order of items on the line? If not, they are in the order of requests.
FLASHLATENT_HOST_DEVICE bool has_order(const Geometry& g) {
  return g.partition == Partition::kLine;
}

/// Upper bound of merges: each inner cut ends one segment and begins another.
FLASHLATENT_HOST_DEVICE std::int64_t line_merges(const Geometry& g) {
  const std::int64_t items = static_cast<std::int64_t>(g.requests) * g.rounds;
  return items < g.parts - 1 ? items : g.parts - 1;
}
FLASHLATENT_HOST_DEVICE std::int64_t line_partials(const Geometry& g) {
  return g.parts - 1 + line_merges(g);
}

/// A point on the line of items.
struct LinePoint {
  std::int32_t round;
  std::int32_t request;
  std::int64_t inside;  ///< Distance from the item's begin, in units of cost.
};

/// The begin of the line's k-th of `parts` equal lengths. cost_prefix[r]: cost of the requests before r in
/// one round; requests + 1 entries.
FLASHLATENT_HOST_DEVICE LinePoint point_at(const Geometry& g, const std::int64_t* cost_prefix,
                                           std::int32_t k) {
  const std::int64_t round_cost = cost_prefix[g.requests];
  if (k <= 0 && g.requests > 0) return {0, 0, 0};
  if (k >= g.parts || round_cost == 0) return {g.rounds, 0, 0};  // the line's end
  const std::int64_t total = round_cost * g.rounds;
  const std::int64_t x = part_offset(total, g.parts, k);
  const std::int64_t round = g.rounds == 1 ? 0 : x / round_cost;
  const std::int64_t y = x - round * round_cost;
  std::int32_t low = 0, high = g.requests;  // the last request whose item begins at or before y
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (cost_prefix[middle] <= y) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return {static_cast<std::int32_t>(round), low, y - cost_prefix[low]};
}

/// The cut before block `block` of a point's item; its `partial` is 0.
FLASHLATENT_HOST_DEVICE Cut cut_before(const Geometry& g, const LinePoint& point, std::int64_t block,
                                       std::int32_t blocks) {
  Cut cut{point.round, point.request, 0, 0};
  cut.block = block < blocks ? static_cast<std::int32_t>(block) : blocks;
  if (cut.block == blocks && blocks > 0) return next_item(g, cut);  // no block of this item is left
  return cut;
}

/// The cut at this point, rounded to a block; its `partial` is 0.
template <class Lengths>
FLASHLATENT_HOST_DEVICE Cut line_cut(const Geometry& g, const LinePoint& point, const Lengths& lengths) {
  if (point.inside == 0) return {point.round, point.request, 0, 0};
  std::int64_t block = 0;
  if (point.inside >= g.cost.per_split) {
    block = quotient(point.inside - g.cost.per_split + g.cost.per_block / 2, g.cost.per_block);
  }
  return cut_before(g, point, block, blocks_of(g, length_of(g, lengths, point.request)));
}

// Partial results are numbered along the line. Each place where an item is cut begins a segment, and the
// first such place of an item also ends one. So a cut's number follows from both counts before it.

/// Does this cut split an item at a place where the cut before it does not?
FLASHLATENT_HOST_DEVICE bool opens_segment(const Cut& cut, const Cut& before) {
  return cut.block > 0 && !(same_item(cut, before) && cut.block == before.block);
}

/// Is this cut the first that splits its item?
FLASHLATENT_HOST_DEVICE bool opens_merge(const Cut& cut, const Cut& before) {
  return cut.block > 0 && !(same_item(cut, before) && before.block > 0);
}

/// Is this cut the last that splits its item?
FLASHLATENT_HOST_DEVICE bool closes_merge(const Cut& cut, const Cut& after) {
  return cut.block > 0 && !same_item(cut, after);
}

/// The place of the partial result that a cut begins. `segments`, `merges`: how many cuts up to this one,
/// included, began.
FLASHLATENT_HOST_DEVICE std::int32_t balanced_partial(const Cut& cut, std::int32_t segments,
                                                      std::int32_t merges) {
  return segments + merges - (cut.block > 0);
}

}  // namespace flashlatent::schedule
