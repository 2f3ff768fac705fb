// The schedule as arithmetic, the same on host and device: what all partitions have in common.
//
// A batch is a line of items: each request in each round (of `lanes` row tiles). An item of n blocks is
// per_split + n * per_block long on the line. A partition (partition.h) makes `parts` parts of the items; one
// SM, CPU thread or team computes a part. A cut is where a part begins. A walker (walker.h) yields the
// segments of a part. A segment that is not all of its item leaves a partial result in a numbered place of
// the workspace. A merge is an item's run of these places.
#pragma once

#include <cstdint>

#include "core/token_shard.h"
#include "plan/partition.h"

namespace flashlatent::schedule {

/// Time of a segment = per_split + blocks * per_block, measured for each kernel. In nanoseconds if a backend
/// has several kernels, because the kernel with the least estimate() is picked; otherwise in any unit.
struct CostModel {
  std::int32_t per_block = 16;
  std::int32_t per_split = 48;
  std::int32_t per_call = 0;   ///< A call beside its largest part: launches, combine.
  std::int32_t per_merge = 0;  ///< Added to a call that has something to combine.
  /// A block of a part while few other parts read memory (block_cost.h); 0: as long as per_block, a block's
  /// time while all parts read.
  std::int32_t per_block_alone = 0;
  /// A block while all parts have work, if memory is as fast as the H200's with which costs are measured:
  /// parts then wait for each other only on the way to memory. 0: per_block.
  std::int32_t per_block_near = 0;
};

/// What shapes say of one list of tokens of an item (token_lists.h).
struct TokenList {
  std::int32_t reach = 0;   ///< The most tokens; a greater length counts as the reach.
  std::int32_t window = 0;  ///< The item has the last `window` tokens; 0: all.
  /// Each query token of a request ends one token before the next query token does.
  bool causal = false;
};

/// What shapes and the device fix before any length is known. validate() in geometries.h gives the ranges.
struct Geometry {
  std::int32_t requests = 0;
  std::int32_t parts = 1;
  std::int32_t lanes = 1;       ///< Row tiles that one part's workers compute side by side.
  std::int32_t rounds = 1;      ///< lanes * rounds >= row tiles of all KV heads.
  std::int32_t tile_rows = 64;  ///< Query rows of a row tile.
  std::int32_t block_tokens = 64;
  std::int32_t max_tokens = 0;   ///< The page table's reach; a greater length counts as the reach.
  std::int32_t fixed_split = 0;  ///< With kFixedSplits: blocks of a split; else 0.
  /// Consecutive items that have one length: the query tokens of a sparse request.
  std::int32_t length_sharers = 1;
  /// Lists of tokens that an item attends to; with 2, `list` describes them and lengths are UnionLengths.
  std::int32_t lists = 1;
  TokenList list[2] = {};
  /// CTAs that share a segment's blocks and merge; per_block is then a CTA's time over the team's size.
  std::int32_t team = 1;
  Partition partition = Partition::kLine;
  TokenShard shard = {};  ///< Whose tokens the lengths count; fingerprint() needs it.
  CostModel cost;
};

/// Makes the partition kFixedSplits with splits of `blocks` blocks.
FLASHLATENT_HOST_DEVICE void fix_splits(Geometry& g, std::int32_t blocks) {
  g.partition = Partition::kFixedSplits;
  g.fixed_split = blocks;
}

/// Where a part begins: its first block, and the place of its first partial result. With is_shares() a plan
/// stores a ShareCut in its place (shares.h).
struct Cut {
  std::int32_t round;
  std::int32_t request;
  std::int32_t block;
  std::int32_t partial;

  friend FLASHLATENT_HOST_DEVICE bool operator==(const Cut& a, const Cut& b) {
    return a.round == b.round && a.request == b.request && a.block == b.block && a.partial == b.partial;
  }
};

/// An item for the combine step, whose partial results are in places [partial_begin, partial_end).
struct Merge {
  std::int32_t round;
  std::int32_t request;
  std::int32_t partial_begin;
  std::int32_t partial_end;
};

/// A run of blocks of one item. partial: the place of its partial result; -1: the segment is the whole item
/// and writes the output itself.
struct Segment {
  std::int32_t round;
  std::int32_t request;
  std::int32_t length;  ///< Tokens of the item, 0 to max_tokens.
  std::int32_t block_begin;
  std::int32_t block_end;
  std::int32_t partial;
};

/// First bytes of a plan.
struct Header {
  std::uint64_t fingerprint;  ///< Tells Geometries apart: a plan of another problem is recognised by it.
  std::int64_t total_cost;    ///< Length of the line.
  std::int32_t merges;
  std::int32_t partials;
  std::int32_t reserved[10];
};
static_assert(sizeof(Header) == 64);

FLASHLATENT_HOST_DEVICE std::int32_t tokens_of(const Geometry& g, std::int32_t length) {
  return length < 0 ? 0 : length < g.max_tokens ? length : g.max_tokens;
}

/// The length of item number `request`. Without lengths all are max_tokens.
FLASHLATENT_HOST_DEVICE std::int32_t length_of(const Geometry& g, const std::int32_t* lengths,
                                               std::int32_t request) {
  if (lengths == nullptr) return g.max_tokens;
  return lengths[g.length_sharers == 1 ? request : request / g.length_sharers];
}

FLASHLATENT_HOST_DEVICE std::int32_t blocks_of(const Geometry& g, std::int32_t length) {
  const std::int32_t tokens = tokens_of(g, length);
  // shifts: a division takes a device long
  if (g.block_tokens == 64) return (tokens >> 6) + ((tokens & 63) != 0);
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

/// The geometry by which a plan is cut if only the first `parts` parts get work. The other parts begin and
/// end where the last of the first ones ends.
FLASHLATENT_HOST_DEVICE Geometry with_parts(Geometry g, std::int32_t parts) {
  g.parts = parts;
  return g;
}

/// x / y of numbers that are not negative. A 64-bit division takes a device some 100 instructions.
FLASHLATENT_HOST_DEVICE std::int64_t quotient(std::int64_t x, std::int32_t y) {
  if (x >> 32 == 0) return static_cast<std::uint32_t>(x) / static_cast<std::uint32_t>(y);
  return x / y;
}

/// total * k / parts without overflow: the begin of the k-th of `parts` equal lengths.
FLASHLATENT_HOST_DEVICE std::int64_t part_offset(std::int64_t total, std::int32_t parts, std::int32_t k) {
  const std::int64_t each = quotient(total, parts), left = total - each * parts;
  return each * k + quotient(left * k, parts);
}

/// The begin of the item after the cut's item.
FLASHLATENT_HOST_DEVICE Cut next_item(const Geometry& g, const Cut& cut) {
  if (cut.request + 1 < g.requests) return {cut.round, cut.request + 1, 0, 0};
  return {cut.round + 1, 0, 0, 0};
}

FLASHLATENT_HOST_DEVICE bool same_item(const Cut& a, const Cut& b) {
  return a.round == b.round && a.request == b.request;
}

}  // namespace flashlatent::schedule
