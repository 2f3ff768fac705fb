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
// the combine step would: 128 equal requests on 132 SMs are 128 parts, not 132 with two segments each. Where
// memory binds that goes for fewer requests, too (whole_block_cost()).
//
// Every cut is a closed form over prefix sums: no loop over requests depends on the one before. Of this there
// is one exception. Equal cuts split nearly every one of a few hundred requests of varied lengths; up to
// kMostPacked of them are therefore packed (packing.h), which puts them on the line in another
// order.
#pragma once

#include <cstdint>

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
  /// A block of a part's where few others read memory; 0: no less than per_block, which is where all do.
  std::int32_t per_block_alone = 0;
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
  const std::int32_t fields[] = {
      g.requests,       g.parts,          g.lanes,       g.rounds,         g.tile_rows,
      g.block_tokens,   g.max_tokens,     g.fixed_split, g.length_sharers, g.cost.per_block,
      g.cost.per_split, g.cost.per_merge, g.team,        g.whole,          g.cost.per_block_alone};
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (std::int32_t field : fields) hash = (hash ^ static_cast<std::uint32_t>(field)) * 0x100000001b3ULL;
  return hash;
}

/// x / y of numbers that are not negative. A device divides 64 bits for some 100 instructions.
FLASHLATENT_HOST_DEVICE std::int64_t quotient(std::int64_t x, std::int32_t y) {
  if (x >> 32 == 0) return static_cast<std::uint32_t>(x) / static_cast<std::uint32_t>(y);
  return x / y;
}

/// What k of `parts` equal lengths come to: total * k / parts, which might overflow.
FLASHLATENT_HOST_DEVICE std::int64_t part_offset(std::int64_t total, std::int32_t parts, std::int32_t k) {
  const std::int64_t each = quotient(total, parts), left = total - each * parts;
  return each * k + quotient(left * k, parts);
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

/// The begin of the item after the cut's.
FLASHLATENT_HOST_DEVICE Cut next_item(const Geometry& g, const Cut& cut) {
  if (cut.request + 1 < g.requests) return {cut.round, cut.request + 1, 0, 0};
  return {cut.round + 1, 0, 0, 0};
}

/// Where a cut at this point falls, without its slot.
FLASHLATENT_HOST_DEVICE Cut cut_at(const Geometry& g, const LinePoint& point, const std::int32_t* lengths) {
  Cut cut{point.round, point.request, 0, 0};
  if (point.inside == 0) return cut;
  const std::int32_t blocks = blocks_of(g, length_of(g, lengths, point.request));
  std::int64_t block = 0;
  if (g.fixed_split > 0) {
    const std::int64_t split_cost =
        g.cost.per_split + static_cast<std::int64_t>(g.fixed_split) * g.cost.per_block;
    block = (point.inside + split_cost / 2) / split_cost * g.fixed_split;
  } else if (point.inside >= g.cost.per_split) {
    block = quotient(point.inside - g.cost.per_split + g.cost.per_block / 2, g.cost.per_block);
  }
  cut.block = block < blocks ? static_cast<std::int32_t>(block) : blocks;
  if (cut.block == blocks && blocks > 0) return next_item(g, cut);  // nothing is left of this one
  return cut;
}

/// Where it falls if all items stay whole: at the nearest end of one.
FLASHLATENT_HOST_DEVICE Cut whole_cut_at(const Geometry& g, const std::int64_t* cost_prefix,
                                         const LinePoint& point) {
  const Cut cut{point.round, point.request, 0, 0};
  if (point.inside == 0) return cut;
  const std::int64_t item = cost_prefix[point.request + 1] - cost_prefix[point.request];
  return 2 * point.inside < item ? cut : next_item(g, cut);
}

/// What a block takes where items stay whole: if there are fewer of these than parts, fewer share what memory
/// gives, and the parts without one are no loss as long as it binds.
FLASHLATENT_HOST_DEVICE std::int32_t whole_block_cost(const Geometry& g) {
  const std::int64_t items = static_cast<std::int64_t>(g.requests) * g.rounds;
  if (g.cost.per_block_alone == 0 || items >= g.parts) return g.cost.per_block;
  const auto shared = static_cast<std::int32_t>(quotient(g.cost.per_block * items, g.parts));
  return shared > g.cost.per_block_alone ? shared : g.cost.per_block_alone;
}

/// Is a part of whole items, from `begin` to `end`, no longer than it would be with splits and a combine
/// step? If that is so of all parts, nothing is split.
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
  return whole + whole / 32 <= split;  // long requests gain little, and multiprocessors are not alike
}

/// With kWhole: where part k begins.
FLASHLATENT_HOST_DEVICE Cut item_cut(const Geometry& g, std::int32_t k) {
  return {k / g.requests, k % g.requests, 0, 0};
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

}  // namespace flashlatent::schedule
