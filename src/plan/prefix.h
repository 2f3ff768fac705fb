// Prefixes that requests share, as arithmetic and bytes, the same on host and device.
//
// Requests whose page tables begin alike are a group. A group's query rows meet its prefix in tiles of
// tile_rows rows, request by request: a tile's rows of one KV head against a run of the prefix's blocks are a
// unit, the work of one CTA or thread, whose result (out, lse) is a partial one. Each request then attends to
// its own tokens only, those after the prefix, and merges the units' results with its first segment's.
//
// The host finds the groups and cuts the units (prefix_groups.h, prefix_plan.h). How many tokens a request
// has is what the call says, not the plan: one that no longer sees all of its prefix leaves the units'
// results alone and attends to all tokens by itself.
#pragma once

#include <cstdint>

#include "plan/plan_memory.h"

namespace flashlatent::prefix {

/// What shapes, the device and the kernel fix before any page table is known. Costs are of the whole device,
/// in picoseconds.
struct Shape {
  std::int32_t requests = 0;      ///< 0: prefixes are not shared, and nothing here takes any memory.
  std::int32_t request_rows = 1;  ///< Query rows of a request and KV head.
  std::int32_t kv_heads = 1;
  std::int32_t max_tokens = 0;  ///< Lengths above the page table's reach count as this.
  std::int32_t unseen = 0;      ///< A request's last tokens that its first query token does not see.
  std::int32_t tile_rows = 64;  ///< At least twice request_rows.
  std::int32_t block_tokens = 64;
  std::int32_t workers = 1;      ///< Units that run at once.
  std::int32_t read_cost = 0;    ///< A request's token that is attended to alone.
  std::int32_t tile_cost = 0;    ///< A tile's token, for all KV heads.
  std::int32_t member_cost = 0;  ///< What a request pays to be in a group.
  std::int32_t call_cost = 0;    ///< What a call pays for having groups.
  // Where prefixes and requests' own tokens go side by side, each on some of the workers; nanoseconds of one
  // worker. 0: one after the other, each on all of them.
  std::int32_t unit_block_cost = 0;  ///< A block of a unit.
  std::int32_t own_block_cost = 0;   ///< A block of a request's own, as fast as one worker can.
  std::int32_t own_split_cost = 0;   ///< What a segment of those takes beside.
  std::int32_t lanes_a_worker = 1;   ///< Row tiles that one worker has side by side in those.
};

/// Requests of a tile: whole ones.
FLASHLATENT_HOST_DEVICE std::int32_t tile_requests(const Shape& shape) {
  return shape.tile_rows / shape.request_rows;
}

/// First bytes of the prefixes' part of a plan.
struct Header {
  std::uint64_t fingerprint;  ///< Of the shape.
  std::int32_t groups;
  std::int32_t tiles;
  std::int32_t units;
  std::int32_t members;     ///< Requests that are in a group.
  std::int32_t workers;     ///< That do the units: unit u is worker u % workers'.
  std::int32_t used_parts;  ///< Of the plan's parts, those that have any work.
};

/// Query rows of some requests of a group.
struct Tile {
  std::int32_t member_begin;  ///< Its requests are so many members from there.
  std::int32_t members;
  std::int32_t tokens;      ///< The prefix, whole blocks.
  std::int32_t splits;      ///< Units of each KV head; the prefix's blocks are cut evenly.
  std::int32_t unit_begin;  ///< Unit (KV head k, split s) is unit_begin + k * splits + s.
  std::int32_t row_begin;   ///< Its first row among the partial ones; each unit has members * request_rows.
  std::int32_t group;
  std::int32_t request;  ///< Its first one.
};

/// What one request has to know.
struct Share {
  std::int32_t tokens;     ///< Of its prefix, 0: none.
  std::int32_t splits;     ///< Partial results to merge.
  std::int32_t row_begin;  ///< Its first partial row, of KV head 0 and split 0.
  std::int32_t unit_rows;  ///< From one split's row to the next one's; splits times that from KV head to KV
                           ///< head.
};

/// One unit: a tile's rows of a KV head against a run of blocks.
struct Unit {
  Tile tile;
  std::int32_t kv_head;
  std::int32_t block_begin, block_end;
  std::int64_t row_begin;  ///< Of its partial rows.
};

FLASHLATENT_HOST_DEVICE Unit unit_of(const Shape& shape, const Tile& tile, std::int32_t index) {
  const std::int32_t place = index - tile.unit_begin;
  const std::int32_t split = place % tile.splits;
  const std::int64_t blocks = tile.tokens / shape.block_tokens;
  return {tile, place / tile.splits, static_cast<std::int32_t>(blocks * split / tile.splits),
          static_cast<std::int32_t>(blocks * (split + 1) / tile.splits),
          tile.row_begin + static_cast<std::int64_t>(place) * tile.members * shape.request_rows};
}

/// The tile that has a unit.
FLASHLATENT_HOST_DEVICE std::int32_t tile_of_unit(const Header& header, const Tile* tiles,
                                                  std::int32_t unit) {
  std::int32_t low = 0, high = header.tiles;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (tiles[middle].unit_begin <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The prefixes' part of a plan in memory: header | tiles[requests] | members[requests], which the host
/// writes, then shares[requests] | own_lengths[requests].
struct View {
  Header* header;
  Tile* tiles;
  std::int32_t* members;  ///< Requests, tile by tile.
  Share* shares;          ///< Of every request.
  std::int32_t*
      own_lengths;  ///< own_length() of every request, when the plan was made: cuts are made of these.
};

FLASHLATENT_HOST_DEVICE std::int64_t align(std::int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

FLASHLATENT_HOST_DEVICE std::int64_t bytes(const Shape& shape) {
  if (shape.requests == 0) return 0;
  const std::int64_t each = sizeof(Tile) + sizeof(std::int32_t) + sizeof(Share) + sizeof(std::int32_t);
  return static_cast<std::int64_t>(sizeof(Header)) + shape.requests * each;
}

FLASHLATENT_HOST_DEVICE View view(const Shape& shape, void* memory) {
  View view;
  view.header = static_cast<Header*>(memory);
  view.tiles = reinterpret_cast<Tile*>(view.header + 1);
  view.members = reinterpret_cast<std::int32_t*>(view.tiles + shape.requests);
  view.shares = reinterpret_cast<Share*>(view.members + shape.requests);
  view.own_lengths = reinterpret_cast<std::int32_t*>(view.shares + shape.requests);
  return view;
}

/// Where it begins in a plan, and so how long the plan is without it.
FLASHLATENT_HOST_DEVICE std::int64_t offset(const schedule::Geometry& geometry) {
  return align(schedule::plan_bytes(geometry));
}

/// All query rows.
FLASHLATENT_HOST_DEVICE std::int64_t all_rows(const Shape& shape) {
  return static_cast<std::int64_t>(shape.requests) * shape.request_rows * shape.kv_heads;
}

/// Upper bound of the units' partial rows: each query row once, and a tile for every unit beyond that.
FLASHLATENT_HOST_DEVICE std::int64_t max_partial_rows(const Shape& shape) {
  if (shape.requests == 0) return 0;
  return all_rows(shape) + static_cast<std::int64_t>(shape.workers) * shape.tile_rows;
}

/// Rows in the workspace: those, and each query row's own result, which a kernel may have to keep.
FLASHLATENT_HOST_DEVICE std::int64_t workspace_rows(const Shape& shape) {
  return max_partial_rows(shape) + all_rows(shape);
}

/// FNV-1a over the shape's fields.
FLASHLATENT_HOST_DEVICE std::uint64_t fingerprint(const Shape& shape) {
  const std::int32_t fields[] = {shape.requests,  shape.request_rows, shape.kv_heads, shape.max_tokens,
                                 shape.tile_rows, shape.block_tokens, shape.workers};
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (std::int32_t field : fields) hash = (hash ^ static_cast<std::uint32_t>(field)) * 0x100000001b3ULL;
  return hash;
}

/// The share of the member in place `index` of a tile.
FLASHLATENT_HOST_DEVICE Share share_of(const Shape& shape, const Tile& tile, std::int32_t index) {
  return {tile.tokens, tile.splits, tile.row_begin + index * shape.request_rows,
          tile.members * shape.request_rows};
}

/// Do all query tokens of a request that is `length` tokens long see all of its prefix, of so many `tokens`?
/// When the groups were found they did.
FLASHLATENT_HOST_DEVICE bool sees_prefix(std::int32_t tokens, std::int32_t length, std::int32_t unseen) {
  return tokens > 0 && length >= tokens + unseen;
}

/// Tokens that a request attends to by itself: those after its prefix, if it sees that, else all.
FLASHLATENT_HOST_DEVICE std::int32_t own_length(const Shape& shape, std::int32_t length, const Share& share) {
  const std::int32_t counted = length < shape.max_tokens ? length : shape.max_tokens;
  if (sees_prefix(share.tokens, counted, shape.unseen)) return counted - share.tokens;
  return counted > 0 ? counted : 0;
}

}  // namespace flashlatent::prefix
