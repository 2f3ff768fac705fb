// Packing: parts are filled with whole items, longest first. It is the one exception to cuts in closed form
// (line.h).
#pragma once

#include "core/divisor.h"
#include "plan/line.h"

namespace flashlatent::schedule {

/// The most requests that are packed, and the most parts: each takes a device one serial step.
inline constexpr std::int32_t kMostPacked = 256;
inline constexpr std::int32_t kMostPackedParts = 160;
/// The least blocks of a piece: fewer blocks hardly take as long as a segment's begin and output.
inline constexpr std::int32_t kLeastPiece = 4;
/// The number of bounds (packing_bound()) that packing tries. More bounds balance no better
/// (docs/log/plans.md), and each has warps of its own, which compete for a device's instruction fetches.
inline constexpr std::int32_t kPackings = 2;
/// The most stretches of the line, packed side by side: packing takes a device hundreds of clocks an item.
inline constexpr std::int32_t kMostStretches = 4;
/// The least parts of a stretch. With two lanes, and so 66 parts, a layer takes up to 2 % longer with three
/// stretches of 22 parts than with two of 33 (128 requests of varied lengths, 128 heads).
inline constexpr std::int32_t kLeastStretch = 33;

/// Do shapes allow that items are packed?
FLASHLATENT_HOST_DEVICE bool shapes_may_pack(const Geometry& g) {
  return has_order(g) && g.rounds == 1 && g.requests > 1 && g.requests <= kMostPacked && g.parts > 1 &&
         g.parts <= kMostPackedParts;
}

/// Are items packed, if they do not stay whole in the order of requests? Costs must be far below 2^31.
FLASHLATENT_HOST_DEVICE bool may_pack(const Geometry& g, std::int64_t round_cost) {
  return shapes_may_pack(g) &&
         round_cost + 2 * kLeastPiece * (std::int64_t{g.cost.per_split} + g.cost.per_block) < 1 << 30;
}

/// The most that a part may cost in packing number `index`; the least bound into which all items fit is
/// taken. The bounds are the ideal plus half, and plus all, of the excess that equal cuts may have, so no
/// part is longer than with equal cuts.
FLASHLATENT_HOST_DEVICE std::int32_t packing_bound(const Geometry& g, std::int64_t round_cost,
                                                   std::int32_t index) {
  const auto total = static_cast<std::int32_t>(round_cost);
  const std::int32_t equal = g.cost.per_split + g.cost.per_block;
  return total / g.parts + (total % g.parts != 0) + (equal >> (kPackings - 1 - index));
}

/// How the line is divided for packing.
struct Stretches {
  std::int32_t count;
  std::int32_t parts;  ///< In each stretch.
};

/// Stretches have equal numbers of parts, so that dealt items fill each stretch without a split where two
/// meet.
FLASHLATENT_HOST_DEVICE Stretches stretches_of(const Geometry& g) {
  std::int32_t count = kMostStretches;
  while (g.parts % count != 0 || (count > 1 && g.parts / count < kLeastStretch)) --count;
  return {count, g.parts / count};
}

/// The place, on the line to be packed, of the item with this rank (0: the most expensive item). Items are
/// dealt to the stretches back and forth, so that stretches cost about the same.
FLASHLATENT_HOST_DEVICE std::int32_t dealt_place(std::int32_t items, std::int32_t stretches,
                                                 std::int32_t rank) {
  // `left`: items in an incomplete last row
  const std::int32_t rows = items / stretches, left = items % stretches;
  const std::int32_t row = rank / stretches, column = rank % stretches;
  const std::int32_t stretch = row % 2 == 0 ? column : stretches - 1 - column;
  // Items of the last row in earlier stretches.
  const std::int32_t first_left = rows % 2 == 0 ? 0 : stretches - left;
  const std::int32_t before = stretch - first_left;
  return stretch * rows + (before < 0 ? 0 : before < left ? before : left) + row;
}

/// A point on the line to be packed: at a block of the item in a place, or before that item (block 0).
struct PackedPoint {
  std::int32_t place;
  std::int32_t block;
};

/// The begin of a stretch: as near to its equal share of the line as possible without too short a piece, or
/// at an item's end if that costs the stretch's parts at most half a block each. `offset`: the equal share;
/// `place`: the item there, which begins at `begin` and costs `cost`.
FLASHLATENT_HOST_DEVICE PackedPoint stretch_begin(const Geometry& g, const Stretches& stretches,
                                                  std::int32_t offset, std::int32_t place, std::int32_t begin,
                                                  std::int32_t cost) {
  const std::int32_t before = offset - begin, after = begin + cost - offset;
  const PackedPoint end = before <= after ? PackedPoint{place, 0} : PackedPoint{place + 1, 0};
  const std::int32_t nearest = before <= after ? before : after;
  if (nearest <= stretches.parts * g.cost.per_block / 2) return end;
  const std::int32_t blocks = (cost - g.cost.per_split) / g.cost.per_block;
  const std::int32_t block =
      before < g.cost.per_split ? 0 : (before - g.cost.per_split + g.cost.per_block / 2) / g.cost.per_block;
  return block < kLeastPiece || blocks - block < kLeastPiece ? end : PackedPoint{place, block};
}

/// A stretch of the line and the parts into which it is packed. Its items are those that begin in it; the
/// last item is not whole if the stretch ends inside it.
struct Stretch {
  std::int32_t part_begin, part_end;
  PackedPoint begin, end;
  std::int32_t rest;   ///< Cost of its piece of an item that began before it.
  std::int32_t piece;  ///< Cost of its piece of its last item; 0: that item is whole.

  FLASHLATENT_HOST_DEVICE std::int32_t first_item() const { return begin.place + (begin.block > 0); }
  FLASHLATENT_HOST_DEVICE std::int32_t items() const {
    const std::int32_t last = end.place + (end.block > 0);
    return last > first_item() ? last - first_item() : 0;
  }
};

/// `begin_cost` and `end_cost`: costs of the items in which the stretch begins and ends.
FLASHLATENT_HOST_DEVICE Stretch stretch_of(const Geometry& g, const Stretches& stretches, std::int32_t index,
                                           PackedPoint begin, PackedPoint end, std::int32_t begin_cost) {
  Stretch stretch{stretches.parts * index, stretches.parts * (index + 1), begin, end, 0, 0};
  const bool inside = begin.block > 0 && end.place == begin.place;  // the stretch lies inside one item
  if (begin.block > 0) {
    stretch.rest = inside ? g.cost.per_split + (end.block - begin.block) * g.cost.per_block
                          : begin_cost - begin.block * g.cost.per_block;
  }
  if (end.block > 0 && !inside) stretch.piece = g.cost.per_split + end.block * g.cost.per_block;
  return stretch;
}

/// An item that is not yet in a part.
struct Unpacked {
  std::int32_t place;  ///< Its number within one packing.
  std::int32_t cost;   ///< -1: there is no such item.
};

/// Fills a stretch's parts one after another, up to `bound`. A part takes the longest item that fits, if
/// little room is left then or another item fits as well. Otherwise it takes a piece of the longest item that
/// is left, whose rest opens the next part (McNaughton's rule). Pieces are then few, and short items fill the
/// room that long ones leave. Returns whether all items fit.
///
/// `items` has longest(), longest_within(cost) and shortest() of the items that are left, and take(Unpacked).
/// The item that goes on in the next stretch is taken last. `cut(k, item, block)` reports that part k begins
/// at this block: `item` counts the takes, and -1 is the item that began before the stretch.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <class Items, class Cuts>
FLASHLATENT_HOST_DEVICE bool pack_parts(const Geometry& g, std::int32_t bound, const Stretch& stretch,
                                        Items& items, Cuts&& cut) {
  const Divisor per_block(g.cost.per_block);
  const std::int32_t least_blocks = kLeastPiece * g.cost.per_block;
  const std::int32_t least_piece = g.cost.per_split + least_blocks;
  // Blocks of a piece that would cost `cost`; few enough that the item's rest is not too short.
  auto piece = [&](std::int32_t room, std::int32_t cost) {
    const std::int32_t most = cost - least_blocks;
    return per_block.quotient((room < most ? room : most) - g.cost.per_split);
  };
  if (bound < least_piece) return false;
  std::int32_t taken = 0;                     // items taken
  std::int32_t rest = stretch.rest;           // cost of what is left of the last item
  std::int32_t before = stretch.begin.block;  // its blocks in earlier parts
  for (std::int32_t k = stretch.part_begin; k < stretch.part_end; ++k) {
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
      // Without branches: a step is one chain of dependent instructions, some 300 clocks on a device.
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
  return before == 0 && items.longest().cost < 0;
}

/// The begin of a part of a stretch, from the number `item` that pack_parts() reports, as a place in the
/// order of all stretches' takes. Past the last item it is the stretch's end.
FLASHLATENT_HOST_DEVICE PackedPoint packed_point(const Stretch& stretch, std::int32_t item,
                                                 std::int32_t block) {
  return item == stretch.items() ? stretch.end : PackedPoint{stretch.first_item() + item, block};
}

/// The cut of packed items, in the order `order`.
FLASHLATENT_HOST_DEVICE Cut packed_cut(const Geometry& g, PackedPoint point, const std::int32_t* order) {
  if (point.place == g.requests) return {g.rounds, 0, 0, 0};
  return {0, order[point.place], point.block, 0};
}

/// The successor of the item number `item` of `order`.
FLASHLATENT_HOST_DEVICE std::int32_t packed_successor(const Geometry& g, std::int32_t item,
                                                      const std::int32_t* order) {
  return item + 1 < g.requests ? order[item + 1] : ~order[0];
}

}  // namespace flashlatent::schedule
