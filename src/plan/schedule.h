// The schedule as arithmetic, the same on host and device.
//
// A batch is a line of items: for each round (a group of row tiles), each request. An item of n blocks is
// per_split + n * per_block long on that line. The line is cut into `parts` equal lengths; a cut that falls
// inside an item is rounded to a block. A part is then at most per_block + per_split longer than the ideal
// (and 1 more: the line is cut in whole units): half a block of rounding at each end, and per_split paid
// again for the item that its cut opens, or per_split moved to it by a cut that falls before an item's first
// block. With fixed_split cuts are rounded to a split, and a part is at most one whole split longer.
//
// Splits are left out altogether where cuts at the nearest ends of items make no part longer than splits and
// the combine step would: 128 equal requests on 132 SMs are 128 parts, not 132 with two segments each.
//
// Every cut is a closed form over prefix sums: no loop over requests depends on the one before. Of this there
// is one exception. Equal cuts split nearly every one of a few hundred requests of varied lengths; up to
// kMostPacked of them are therefore packed (pack_parts() below), which puts them on the line in another
// order.
#pragma once

#include <cstdint>

#include "core/divisor.h"

#ifdef __CUDACC__
#define FLASHLATENT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FLASHLATENT_HOST_DEVICE inline
#endif

namespace flashlatent::schedule {

/// Time of a segment = per_split + blocks * per_block, measured for each kernel. Nanoseconds where a backend
/// has several kernels, since the one is picked whose estimate() is least; else any unit.
struct CostModel {
  std::int32_t per_block = 16;
  std::int32_t per_split = 48;
  std::int32_t per_call = 0;   ///< What a call takes beside its largest part: launches, combine.
  std::int32_t per_merge = 0;  ///< What having to combine adds to a call.
};

/// How items become parts.
inline constexpr std::int32_t kCutLine = 0;  ///< The line of items is cut where balance wants.
/// Part k is item k, whatever the lengths; nothing is ever merged.
inline constexpr std::int32_t kWhole = 1;
/// A part is of one item. Each item has one, and more by its share of the cost; those of an item take equal
/// shares of its blocks, and merge what they have themselves: no combine step. One round.
inline constexpr std::int32_t kShared = 2;
/// The same with as many parts an item (at least two), whatever the lengths, and a combine step: kernels need
/// not read the plan.
inline constexpr std::int32_t kEven = 3;
/// The same, but with as many parts an item as make the longest part shortest. Of so few requests that each
/// lane of a warp can have one.
inline constexpr std::int32_t kByLength = 4;
inline constexpr std::int32_t kMostByLength = 32;

/// What shapes and the device fix before any length is known. See validate() in host_plan.h for its range.
struct Geometry {
  std::int32_t requests = 0;
  std::int32_t parts = 1;
  std::int32_t lanes = 1;       ///< Row tiles that the workers of one part do side by side.
  std::int32_t rounds = 1;      ///< lanes * rounds >= row tiles of all KV heads.
  std::int32_t tile_rows = 64;  ///< Query rows a tile.
  std::int32_t block_tokens = 64;
  std::int32_t max_tokens = 0;      ///< Lengths above the page table's reach count as this.
  std::int32_t fixed_split = 0;     ///< batch_invariant: blocks a split; 0: cut where balance wants.
  std::int32_t length_sharers = 1;  ///< Requests in a row that have one length: sparse query tokens.
  std::int32_t team = 1;            ///< CTAs that share a segment's blocks, and merge what they have; a block
                                    ///< costs a team a CTA's time over its size.
  std::int32_t whole = kCutLine;    ///< kCutLine, kWhole, kShared, kEven or kByLength.
  CostModel cost;
};

/// Where a part begins: its first block, and the slot of its first partial result. With kShared, kEven and
/// kByLength: `round` parts share the request's blocks, of which this is the one of number `block`; its slot
/// is its own number.
struct Cut {
  std::int32_t round;
  std::int32_t request;
  std::int32_t block;
  std::int32_t slot;

  friend FLASHLATENT_HOST_DEVICE bool operator==(const Cut& a, const Cut& b) {
    return a.round == b.round && a.request == b.request && a.block == b.block && a.slot == b.slot;
  }
};

/// An item whose result lies in slots [slot_begin, slot_end) for the combine step.
struct Merge {
  std::int32_t round;
  std::int32_t request;
  std::int32_t slot_begin;
  std::int32_t slot_end;
};

/// A run of blocks of one item. slot = -1: the whole item, which writes the output itself.
struct Segment {
  std::int32_t round;
  std::int32_t request;
  std::int32_t length;  ///< The request's tokens, 0 to max_tokens.
  std::int32_t block_begin;
  std::int32_t block_end;
  std::int32_t slot;
};

/// First bytes of a plan.
struct Header {
  std::uint64_t fingerprint;  ///< Of the geometry: a plan of another problem is recognised.
  std::int64_t total_cost;    ///< Length of the line.
  std::int32_t merges;
  std::int32_t slots;
  std::int32_t reserved[10];
};
static_assert(sizeof(Header) == 64);

FLASHLATENT_HOST_DEVICE std::int32_t tokens_of(const Geometry& g, std::int32_t length) {
  return length < 0 ? 0 : length < g.max_tokens ? length : g.max_tokens;
}

/// The length of a request. Without lengths all are max_tokens long.
FLASHLATENT_HOST_DEVICE std::int32_t length_of(const Geometry& g, const std::int32_t* lengths,
                                               std::int32_t request) {
  if (lengths == nullptr) return g.max_tokens;
  return lengths[g.length_sharers == 1 ? request : request / g.length_sharers];
}

FLASHLATENT_HOST_DEVICE std::int32_t blocks_of(const Geometry& g, std::int32_t length) {
  const std::int32_t tokens = tokens_of(g, length);
  if (g.block_tokens == 64) return (tokens >> 6) + ((tokens & 63) != 0);  // a device would divide for long
#ifdef __CUDA_ARCH__
  if ((g.block_tokens & (g.block_tokens - 1)) == 0) {
    return (tokens >> (__ffs(g.block_tokens) - 1)) + ((tokens & (g.block_tokens - 1)) != 0);
  }
#endif
  return tokens / g.block_tokens + (tokens % g.block_tokens != 0);
}

FLASHLATENT_HOST_DEVICE std::int32_t fixed_splits_of(const Geometry& g, std::int32_t blocks) {
  return blocks <= g.fixed_split ? 1 : blocks / g.fixed_split + (blocks % g.fixed_split != 0);
}

FLASHLATENT_HOST_DEVICE std::int64_t item_cost(const Geometry& g, std::int32_t blocks) {
  const std::int32_t splits = g.fixed_split > 0 ? fixed_splits_of(g, blocks) : 1;
  return static_cast<std::int64_t>(splits) * g.cost.per_split +
         static_cast<std::int64_t>(blocks) * g.cost.per_block;
}

FLASHLATENT_HOST_DEVICE std::int32_t max_blocks(const Geometry& g) {
  return blocks_of(g, g.max_tokens);
}

/// Upper bound of Header::merges.
FLASHLATENT_HOST_DEVICE std::int64_t max_merges(const Geometry& g) {
  if (g.whole >= kEven) return g.requests;
  if (g.whole != kCutLine) return 0;
  const std::int64_t items = static_cast<std::int64_t>(g.requests) * g.rounds;
  if (g.fixed_split > 0) return max_blocks(g) > g.fixed_split ? items : 0;
  return items < g.parts - 1 ? items : g.parts - 1;
}

/// Upper bound of Header::slots: each inner cut ends one segment and begins another. With kEven it might be
/// less, but a smaller batch must not need more than a larger one.
FLASHLATENT_HOST_DEVICE std::int64_t max_slots(const Geometry& g) {
  if (g.whole == kWhole) return 0;
  if (g.whole == kShared) return g.parts;
  if (g.fixed_split > 0) return max_merges(g) * fixed_splits_of(g, max_blocks(g));
  return g.parts - 1 + max_merges(g);
}

/// Are items on the line in an order of the plan's own? Else they are in that of requests.
FLASHLATENT_HOST_DEVICE bool has_order(const Geometry& g) {
  return g.whole == kCutLine && g.fixed_split == 0;
}

/// The plan in memory: header | cuts[parts + 1] | merges[max_merges] | cost prefix[requests + 1] |
/// successors[requests] (has_order()) or slot prefix[requests + 1] (fixed_split). Prefixes are of one round:
/// the cost and the partial slots before a request, and in all; only the builder uses them.
struct PlanView {
  Header* header;
  Cut* cuts;
  Merge* merges;
  std::int64_t* cost_prefix;
  std::int32_t* slot_prefix;
  std::int32_t* successors;  ///< The request after each on the line; of the last, ~ the first. Null: + 1.
};

/// The geometry by which a plan is cut if only the first `parts` get any work: those after them begin and end
/// where the last one of these does.
FLASHLATENT_HOST_DEVICE Geometry with_parts(Geometry g, std::int32_t parts) {
  g.parts = parts;
  return g;
}

FLASHLATENT_HOST_DEVICE std::int64_t plan_bytes(const Geometry& g) {
  return static_cast<std::int64_t>(sizeof(Header)) + (g.parts + 1LL) * sizeof(Cut) +
         max_merges(g) * sizeof(Merge) + (g.requests + 1LL) * sizeof(std::int64_t) +
         (g.whole == kCutLine ? (g.requests + 1LL) * sizeof(std::int32_t) : 0);
}

FLASHLATENT_HOST_DEVICE PlanView plan_view(const Geometry& g, void* memory) {
  PlanView view;
  view.header = static_cast<Header*>(memory);
  view.cuts = reinterpret_cast<Cut*>(view.header + 1);
  view.merges = reinterpret_cast<Merge*>(view.cuts + g.parts + 1);
  view.cost_prefix = reinterpret_cast<std::int64_t*>(view.merges + max_merges(g));
  view.slot_prefix = reinterpret_cast<std::int32_t*>(view.cost_prefix + g.requests + 1);
  view.successors = has_order(g) ? view.slot_prefix : nullptr;
  return view;
}

/// FNV-1a over the geometry's fields.
FLASHLATENT_HOST_DEVICE std::uint64_t fingerprint(const Geometry& g) {
  const std::int32_t fields[] = {g.requests,       g.parts,          g.lanes,          g.rounds,
                                 g.tile_rows,      g.block_tokens,   g.max_tokens,     g.fixed_split,
                                 g.length_sharers, g.cost.per_block, g.cost.per_split, g.cost.per_merge,
                                 g.team,           g.whole};
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (std::int32_t field : fields) hash = (hash ^ static_cast<std::uint32_t>(field)) * 0x100000001b3ULL;
  return hash;
}

/// A place on the line of items.
struct LinePoint {
  std::int32_t round;
  std::int32_t request;
  std::int64_t inside;  ///< From the item's begin, in units of cost.
};

/// Where the line's k-th of `parts` equal lengths begins. cost_prefix has one entry a request and a last one.
FLASHLATENT_HOST_DEVICE LinePoint point_at(const Geometry& g, const std::int64_t* cost_prefix,
                                           std::int32_t k) {
  const std::int64_t round_cost = cost_prefix[g.requests];
  if (k <= 0 && g.requests > 0) return {0, 0, 0};
  if (k >= g.parts || round_cost == 0) return {g.rounds, 0, 0};  // the line's end
  const std::int64_t total = round_cost * g.rounds;
  const std::int64_t x = total / g.parts * k + total % g.parts * k / g.parts;  // total * k might overflow
  const std::int64_t y = x % round_cost;
  std::int32_t low = 0, high = g.requests;  // the last request whose item begins at or before y
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (cost_prefix[middle] <= y) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return {static_cast<std::int32_t>(x / round_cost), low, y - cost_prefix[low]};
}

/// The begin of the item after the cut's.
FLASHLATENT_HOST_DEVICE Cut next_item(const Geometry& g, const Cut& cut) {
  if (cut.request + 1 < g.requests) return {cut.round, cut.request + 1, 0, 0};
  return {cut.round + 1, 0, 0, 0};
}

/// Where cut k falls, without its slot.
FLASHLATENT_HOST_DEVICE Cut cut_at(const Geometry& g, const std::int64_t* cost_prefix, std::int32_t k,
                                   const std::int32_t* lengths) {
  const LinePoint point = point_at(g, cost_prefix, k);
  Cut cut{point.round, point.request, 0, 0};
  if (point.inside == 0) return cut;
  const std::int32_t blocks = blocks_of(g, length_of(g, lengths, point.request));
  std::int64_t block = 0;
  if (g.fixed_split > 0) {
    const std::int64_t split_cost =
        g.cost.per_split + static_cast<std::int64_t>(g.fixed_split) * g.cost.per_block;
    block = (point.inside + split_cost / 2) / split_cost * g.fixed_split;
  } else if (point.inside >= g.cost.per_split) {
    block = (point.inside - g.cost.per_split + g.cost.per_block / 2) / g.cost.per_block;
  }
  cut.block = block < blocks ? static_cast<std::int32_t>(block) : blocks;
  if (cut.block == blocks && blocks > 0) return next_item(g, cut);  // nothing is left of this one
  return cut;
}

/// Where cut k falls if all items stay whole: at the nearest end of one.
FLASHLATENT_HOST_DEVICE Cut whole_cut_at(const Geometry& g, const std::int64_t* cost_prefix, std::int32_t k) {
  const LinePoint point = point_at(g, cost_prefix, k);
  const Cut cut{point.round, point.request, 0, 0};
  if (point.inside == 0) return cut;
  const std::int64_t item = cost_prefix[point.request + 1] - cost_prefix[point.request];
  return 2 * point.inside < item ? cut : next_item(g, cut);
}

/// Is part k, of whole items, no longer than it would be with splits and a combine step? If that is so of all
/// parts, nothing is split.
FLASHLATENT_HOST_DEVICE bool whole_part_fits(const Geometry& g, const std::int64_t* cost_prefix,
                                             std::int32_t k) {
  auto position = [&](const Cut& cut) {
    return cost_prefix[g.requests] * cut.round + cost_prefix[cut.request];
  };
  const std::int64_t cost =
      position(whole_cut_at(g, cost_prefix, k + 1)) - position(whole_cut_at(g, cost_prefix, k));
  return cost <= cost_prefix[g.requests] * g.rounds / g.parts + g.cost.per_split + g.cost.per_merge;
}

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

/// With kShared: the parts of the requests before `request`. Each has one; of the others it has its share.
FLASHLATENT_HOST_DEVICE std::int32_t parts_before(const Geometry& g, const std::int64_t* cost_prefix,
                                                  std::int32_t request) {
  const std::int64_t total = cost_prefix[g.requests], before = cost_prefix[request];
  const int shift = total >> 40 != 0 ? 24 : 0;  // the product might overflow
  const std::int64_t others = g.parts - g.requests;
  if (total == 0) return static_cast<std::int32_t>(request + others * request / g.requests);
  return static_cast<std::int32_t>(request + others * (before >> shift) / (total >> shift));
}

/// With kEven: the parts of an item, part k, and what is merged. Parts that are left over have nothing to do.
FLASHLATENT_HOST_DEVICE std::int32_t even_shares(const Geometry& g) {
  return g.parts / g.requests;
}
/// One that is left over, after `used` others.
FLASHLATENT_HOST_DEVICE Cut no_part(const Geometry& g, std::int32_t used) {
  return {0, g.requests, 0, used};
}
FLASHLATENT_HOST_DEVICE Cut even_cut(const Geometry& g, std::int32_t k) {
  const std::int32_t shares = even_shares(g);
  if (k >= g.requests * shares) return no_part(g, g.requests * shares);
  return {shares, k / shares, k % shares, k};
}
FLASHLATENT_HOST_DEVICE Merge even_merge(const Geometry& g, std::int32_t request) {
  const std::int32_t shares = even_shares(g);
  return {0, request, request * shares, (request + 1) * shares};
}

/// With kByLength: how many times a team takes a block each for those of an item. It takes as long for fewer
/// blocks.
FLASHLATENT_HOST_DEVICE std::int32_t turns_of(const Geometry& g, std::int32_t length) {
  return (blocks_of(g, length) + g.team - 1) / g.team;
}
/// The shares of an item, of `most` turns or less.
FLASHLATENT_HOST_DEVICE std::int32_t shares_within(std::int32_t turns, std::int32_t most) {
  if (turns <= most) return 1;
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(turns) + most - 1) /
                                   static_cast<std::uint32_t>(most));
}
/// The least number of turns of the longest share for which there are enough parts. `turns`: of all items;
/// `shares_at(most)`: how many shares of `most` turns or less these take.
template <class SharesAt>
FLASHLATENT_HOST_DEVICE std::int32_t least_longest_share(const Geometry& g, std::int32_t turns,
                                                         SharesAt&& shares_at) {
  // Each item's last share may be nearly empty, but no other.
  std::int32_t low = shares_within(turns, g.parts);
  std::int32_t high = shares_within(turns, g.parts - g.requests);
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (shares_at(middle) <= g.parts) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// With kShared: part k.
FLASHLATENT_HOST_DEVICE Cut shared_cut(const Geometry& g, const std::int64_t* cost_prefix, std::int32_t k) {
  if (k >= g.parts) return {0, g.requests, 0, g.parts};
  std::int32_t low = 0, high = g.requests;  // the last request with no more parts before it
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

/// With kWhole: where part k begins.
FLASHLATENT_HOST_DEVICE Cut item_cut(const Geometry& g, std::int32_t k) {
  return {k / g.requests, k % g.requests, 0, 0};
}

/// Cut k without its slot, unless splits are fixed. `whole`: do all parts of whole items fit?
FLASHLATENT_HOST_DEVICE Cut balanced_cut(const Geometry& g, const std::int64_t* cost_prefix, std::int32_t k,
                                         const std::int32_t* lengths, bool whole) {
  if (g.whole == kWhole) return item_cut(g, k);
  return whole ? whole_cut_at(g, cost_prefix, k) : cut_at(g, cost_prefix, k, lengths);
}

FLASHLATENT_HOST_DEVICE bool same_item(const Cut& a, const Cut& b) {
  return a.round == b.round && a.request == b.request;
}

/// Balanced cuts: slots are numbered along the line. Each place where an item is cut begins one segment, and
/// an item's first such place also ends one, so a cut's slot follows from how many of each come before it.

/// Does this cut split an item, at a place where the cut before it does not?
FLASHLATENT_HOST_DEVICE bool opens_segment(const Cut& cut, const Cut& before) {
  return cut.block > 0 && !(same_item(cut, before) && cut.block == before.block);
}

/// Is it the first to split its item?
FLASHLATENT_HOST_DEVICE bool opens_merge(const Cut& cut, const Cut& before) {
  return cut.block > 0 && !(same_item(cut, before) && before.block > 0);
}

/// Is it the last to split its item?
FLASHLATENT_HOST_DEVICE bool closes_merge(const Cut& cut, const Cut& after) {
  return cut.block > 0 && !same_item(cut, after);
}

/// The slot of a cut, from the segments and merges opened up to and by it.
FLASHLATENT_HOST_DEVICE std::int32_t balanced_slot(const Cut& cut, std::int32_t segments,
                                                   std::int32_t merges) {
  return segments + merges - (cut.block > 0);
}

/// The slot of a cut with fixed_split.
FLASHLATENT_HOST_DEVICE std::int32_t fixed_slot(const Geometry& g, const std::int32_t* slot_prefix,
                                                const Cut& cut) {
  return cut.round * slot_prefix[g.requests] + slot_prefix[cut.request] + cut.block / g.fixed_split;
}

/// Of a segment's blocks, counted from its first one, where the share of a team's CTA `rank` begins; of
/// rank = team their end. Likewise of a request's blocks, with kShared, kEven and kByLength, where
/// a part's share begins.
FLASHLATENT_HOST_DEVICE std::int32_t share_begin(std::int32_t blocks, std::int32_t team, std::int32_t rank) {
  // blocks * rank / team; a device would divide 64 bits for long, and signed numbers for longer than these.
  const std::uint32_t b = static_cast<std::uint32_t>(blocks), t = static_cast<std::uint32_t>(team),
                      r = static_cast<std::uint32_t>(rank);
  return static_cast<std::int32_t>(b / t * r + b % t * r / t);
}

/// Walks the segments of one part. Lengths are read again: a plan made for other lengths is still right,
/// since only cuts decide what is partial (with fixed_split the lengths do, and must be the plan's).
/// `successors`: the plan's, or null.
/// kMayShare: whether there may be kShared or kEven, for which other kernels have no code then. No kernel
/// walks what is kByLength.
template <bool kMayShare, bool kMayBeByLength = false>
class Walker {
 public:
  FLASHLATENT_HOST_DEVICE Walker(const Geometry& geometry, const Cut& begin, const Cut& end,
                                 const std::int32_t* successors, const std::int32_t* lengths)
      : geometry_(geometry), successors_(successors), lengths_(lengths), at_(begin), end_(end) {
    look_ahead();
  }

  FLASHLATENT_HOST_DEVICE bool next(Segment& segment) {
    if (shares()) {
      if (at_.round == 0) return false;
      segment = share();
      at_.round = 0;
      return true;
    }
    const bool in_last_item = same_item(at_, end_);
    if (at_.round >= geometry_.rounds || (in_last_item && at_.block >= end_.block)) return false;
    const std::int32_t length = tokens_of(geometry_, length_ahead_);
    const std::int32_t blocks = blocks_of(geometry_, length);
    std::int32_t stop = in_last_item ? end_.block : blocks;
    bool partial = at_.block > 0 || in_last_item;
    bool item_done = true;
    if (geometry_.fixed_split > 0) {
      partial = blocks > geometry_.fixed_split;
      if (at_.block + geometry_.fixed_split < stop) {
        stop = at_.block + geometry_.fixed_split;
        item_done = false;
      }
    }
    segment.round = at_.round;
    segment.request = at_.request;
    segment.length = length;
    segment.block_begin = at_.block < blocks ? at_.block : blocks;
    segment.block_end = stop < blocks ? stop : blocks;
    segment.slot = partial ? at_.slot++ : -1;
    if (!item_done || in_last_item) {
      at_.block = stop;
    } else {
      at_.block = 0;
      at_.request = successor_ahead_;
      if (at_.request < 0) {
        at_.request = ~at_.request;
        ++at_.round;
      }
    }
    look_ahead();
    return true;
  }

  /// The only segment of a part by shape (kWhole, or kShared with one request), which next() would give.
  FLASHLATENT_HOST_DEVICE Segment only() const {
    if (shares()) return share();
    const std::int32_t length = tokens_of(geometry_, length_ahead_);
    return {at_.round, at_.request, length, 0, blocks_of(geometry_, length), -1};
  }

 private:
  FLASHLATENT_HOST_DEVICE bool shares() const { return kMayShare && geometry_.whole >= kShared; }

  /// By length a share that is all of its request is merged, too.
  FLASHLATENT_HOST_DEVICE std::int32_t slot_of_share() const {
    if constexpr (kMayBeByLength) {
      if (geometry_.whole == kByLength) return at_.slot;
    }
    return at_.round > 1 ? at_.slot : -1;
  }

  /// A part is one segment then.
  FLASHLATENT_HOST_DEVICE Segment share() const {
    const std::int32_t length = tokens_of(geometry_, length_ahead_);
    const std::int32_t blocks = blocks_of(geometry_, length);
    return {0,
            at_.request,
            length,
            share_begin(blocks, at_.round, at_.block),
            share_begin(blocks, at_.round, at_.block + 1),
            slot_of_share()};
  }

  /// Reads the next segment's length, and which request comes after it, before they are needed: on a device
  /// nobody waits for them then.
  FLASHLATENT_HOST_DEVICE void look_ahead() {
    const bool more = shares() ? at_.round > 0 : at_.round < geometry_.rounds;
    length_ahead_ = more ? length_of(geometry_, lengths_, at_.request) : 0;
    if (successors_ == nullptr) {
      successor_ahead_ = at_.request + 1 < geometry_.requests ? at_.request + 1 : ~0;
    } else if (more && !same_item(at_, end_)) {
      successor_ahead_ = successors_[at_.request];
    }
  }

  const Geometry& geometry_;
  const std::int32_t* successors_;
  const std::int32_t* lengths_;
  std::int32_t length_ahead_ = 0;
  std::int32_t successor_ahead_ = 0;
  Cut at_;
  Cut end_;
};
using PartWalker = Walker<true, true>;

}  // namespace flashlatent::schedule
