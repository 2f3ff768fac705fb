// Packed parts: the one exception to cuts in closed form (schedule.h).
#pragma once

#include "core/divisor.h"
#include "plan/schedule.h"

namespace flashlatent::schedule {

/// The most requests that are packed, and the most parts they are packed into: that takes a device a step
/// each.
inline constexpr std::int32_t kMostPacked = 256;
inline constexpr std::int32_t kMostPackedParts = 160;
/// No piece of a packed item is shorter: so many blocks hardly cover what a segment takes to begin and to
/// write.
inline constexpr std::int32_t kLeastPiece = 4;
/// How many bounds of a part packing tries, from the ideal to what cuts at equal distances keep.
inline constexpr std::int32_t kPackings = 8;
static_assert(kPackings >= 2 * kLeastPiece, "may_pack() keeps what pack_parts() adds to costs far from 2^31");

/// Are items packed if they do not stay whole in their order? Costs must be far from 32 bits' end.
FLASHLATENT_HOST_DEVICE bool may_pack(const Geometry& g, std::int64_t round_cost) {
  return has_order(g) && g.rounds == 1 && g.requests > 1 && g.requests <= kMostPacked && g.parts > 1 &&
         g.parts <= kMostPackedParts &&
         round_cost + kPackings * (std::int64_t{g.cost.per_split} + g.cost.per_block) < 1 << 30;
}

/// The bound of a part's cost in packing number `index`: the least one that all items fit into is taken.
FLASHLATENT_HOST_DEVICE std::int32_t packing_bound(const Geometry& g, std::int64_t round_cost,
                                                   std::int32_t index) {
  const auto total = static_cast<std::int32_t>(round_cost);
  return total / g.parts + (total % g.parts != 0) +
         (g.cost.per_split + g.cost.per_block) * (index + 1) / kPackings;
}

/// An item that is not yet in a part.
struct Unpacked {
  std::int32_t place;  ///< Among those of one packing.
  std::int32_t cost;   ///< -1: there is none.
};

/// Fills parts one after another, up to `bound`: with the longest item that fits if little is left over then
/// or another one fits as well, else with a piece of the longest there is, whose rest opens the next part (as
/// in McNaughton's rule). So pieces are few, and short items fill up what long ones leave. Does it all fit?
///
/// `items` has longest(), longest_within(cost) and shortest() of those that are left, and take(Unpacked).
/// `cut(k, item, block)` is told that part k begins there; items are numbered in the order of takes.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <class Items, class Cuts>
FLASHLATENT_HOST_DEVICE bool pack_parts(const Geometry& g, std::int32_t bound, Items& items, Cuts&& cut) {
  const Divisor per_block(g.cost.per_block);
  const std::int32_t least_blocks = kLeastPiece * g.cost.per_block;
  const std::int32_t least_piece = g.cost.per_split + least_blocks;
  // Blocks of a piece, of an item that would cost `cost`: not so many that its rest is short.
  auto piece = [&](std::int32_t room, std::int32_t cost) {
    const std::int32_t most = cost - least_blocks;
    return per_block.quotient((room < most ? room : most) - g.cost.per_split);
  };
  if (bound < least_piece) return false;
  std::int32_t taken = 0;   // items
  std::int32_t rest = 0;    // cost of what is left of the last one
  std::int32_t before = 0;  // its blocks in earlier parts
  for (std::int32_t k = 0; k < g.parts; ++k) {
    cut(k, before > 0 ? taken - 1 : taken, before);
    if (rest > bound) {
      const std::int32_t blocks = piece(bound, rest);
      if (blocks < kLeastPiece) return false;
      rest -= blocks * per_block.value;
      before += blocks;
      continue;
    }
    std::int32_t room = bound - rest;
    rest = before = 0;
    for (;;) {
      const Unpacked longest = items.longest();
      if (longest.cost < 0) break;
      const Unpacked fitting = longest.cost <= room ? longest : items.longest_within(room);
      const std::int32_t left = room - fitting.cost;
      // Without branches: a device takes some 300 clocks a step, all of them for one thing after another.
      const bool fits = fitting.cost >= 0, leaves_little = left < least_piece;
      const bool leaves_room = left >= items.shortest().cost, is_longest = fitting.place == longest.place;
      const bool can_split = (room >= least_piece) & (longest.cost >= least_piece + least_blocks);
      const bool splits = can_split & !(fits & (leaves_little | leaves_room | is_longest));
      if (!(splits | fits)) break;
      items.take(splits ? longest : fitting);
      ++taken;
      if (splits) {
        before = piece(room, longest.cost);
        rest = longest.cost - before * per_block.value;
        break;
      }
      room = left;
    }
  }
  cut(g.parts, taken, 0);
  return before == 0 && items.longest().cost < 0;
}

/// A cut of packed items, at a block of item number `item` of `order`.
FLASHLATENT_HOST_DEVICE Cut packed_cut(const Geometry& g, std::int32_t item, std::int32_t block,
                                       const std::int32_t* order) {
  if (item == g.requests) return {g.rounds, 0, 0, 0};
  return {0, order[item], block, 0};
}

/// The successor of item number `item` of `order`.
FLASHLATENT_HOST_DEVICE std::int32_t packed_successor(const Geometry& g, std::int32_t item,
                                                      const std::int32_t* order) {
  return item + 1 < g.requests ? order[item + 1] : ~order[0];
}

}  // namespace flashlatent::schedule
