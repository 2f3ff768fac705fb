// Prefixes that requests share: arithmetic and bytes, the same on host and device.
//
// Requests whose page tables begin alike are a group. The query rows of a group attend to its prefix in tiles
// of tile_rows rows, request after request. A unit is a tile's rows of one KV head against a run of the
// prefix's blocks; one CTA or thread computes it and writes a partial result (out, lse). Each request then
// attends to its own tokens, those after the prefix, and merges the units' results with its first segment's.
//
// The host finds the groups and cuts the units (prefix_groups.h, prefix_plan.h). The call says a request's
// length, not the plan: a request that no longer sees all of its prefix ignores the units' results and
// attends to all tokens by itself.
#pragma once

#include <cstdint>

#include "plan/plan_memory.h"

namespace flashlatent::prefix {

/// What shapes, the device and the kernel fix before any page table is known. Unless said otherwise, costs
/// are of the whole device, in picoseconds.
struct Shape {
  std::int32_t requests = 0;      ///< 0: no prefixes are shared, and everything here takes no memory.
  std::int32_t request_rows = 1;  ///< Query rows of a request and KV head.
  std::int32_t kv_heads = 1;
  std::int32_t max_tokens = 0;  ///< The page table's reach; a greater length counts as the reach.
  std::int32_t unseen = 0;      ///< A request's last tokens that its first query token does not see.
  std::int32_t tile_rows = 64;  ///< At least twice request_rows.
  std::int32_t block_tokens = 64;
  std::int32_t workers = 1;      ///< Units that run at the same time.
  std::int32_t read_cost = 0;    ///< One token that a request attends to by itself.
  std::int32_t tile_cost = 0;    ///< One token of a prefix for one tile, all KV heads.
  std::int32_t member_cost = 0;  ///< One request's being in a group.
  std::int32_t call_cost = 0;    ///< One call's having groups.
  // Nanoseconds of one worker, if prefixes and requests' own tokens are computed side by side, each on some
  // of the workers. 0: one after the other, each on all workers.
  std::int32_t unit_block_cost = 0;  ///< A block of a unit.
  /// A block of a request's own tokens, at one worker's highest rate.
  std::int32_t own_block_cost = 0;
  std::int32_t own_split_cost = 0;  ///< A segment of a request's own tokens, beside its blocks.
  std::int32_t lanes_a_worker = 1;  ///< Row tiles of own tokens that a worker computes side by side.
};

/// Requests of a tile; a tile has whole requests.
FLASHLATENT_HOST_DEVICE std::int32_t tile_requests(const Shape& shape) {
  return shape.tile_rows / shape.request_rows;
}

/// First bytes of the plan's section for prefixes.
struct Header {
  std::uint64_t fingerprint;  ///< Tells Shapes apart.
  std::int32_t groups;
  std::int32_t tiles;
  std::int32_t units;
  std::int32_t members;     ///< Requests that are in a group.
  std::int32_t workers;     ///< Workers that compute units; worker u % workers has unit u.
  std::int32_t used_parts;  ///< The plan's parts that have work.
};

/// Query rows of some requests of one group.
struct Tile {
  std::int32_t member_begin;  ///< Its requests are `members` entries of View::members from here.
  std::int32_t members;
  std::int32_t tokens;      ///< Length of the prefix, whole blocks.
  std::int32_t splits;      ///< Units of each KV head, among which the prefix's blocks are divided evenly.
  std::int32_t unit_begin;  ///< The unit of KV head k and split s is unit_begin + k * splits + s.
  std::int32_t row_begin;   ///< Its first partial row; each unit has members * request_rows rows.
  std::int32_t group;
  std::int32_t request;  ///< Its first request.
};

/// What one request must know of its prefix.
struct Share {
  std::int32_t tokens;     ///< Length of its prefix; 0: it has none.
  std::int32_t splits;     ///< Partial results to merge for each of its rows.
  std::int32_t row_begin;  ///< Its first partial row, of KV head 0 and split 0.
  /// Partial rows from one split to the next; times `splits` from one KV head to the next.
  std::int32_t unit_rows;
};

/// One unit: a tile's rows of one KV head against a run of blocks.
struct Unit {
  Tile tile;
  std::int32_t kv_head;
  std::int32_t block_begin, block_end;
  std::int64_t row_begin;  ///< Its first partial row.
};

FLASHLATENT_HOST_DEVICE Unit unit_of(const Shape& shape, const Tile& tile, std::int32_t index) {
  const std::int32_t place = index - tile.unit_begin;
  const std::int32_t split = place % tile.splits;
  const std::int64_t blocks = tile.tokens / shape.block_tokens;
  return {tile, place / tile.splits, static_cast<std::int32_t>(blocks * split / tile.splits),
          static_cast<std::int32_t>(blocks * (split + 1) / tile.splits),
          tile.row_begin + static_cast<std::int64_t>(place) * tile.members * shape.request_rows};
}

/// The tile that a unit belongs to.
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

/// The plan's section for prefixes: header | tiles[requests] | members[requests], which the host writes, then
/// shares[requests] | own_lengths[requests].
struct View {
  Header* header;
  Tile* tiles;
  std::int32_t* members;  ///< Requests, tile after tile.
  Share* shares;          ///< One for every request.
  std::int32_t*
      /// One own_length() for every request, at the time of planning: cuts are made from these.
      own_lengths;
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

/// Bytes from a plan's begin to the section for prefixes: the length of the plan without it.
FLASHLATENT_HOST_DEVICE std::int64_t offset(const schedule::Geometry& geometry) {
  return align(schedule::plan_bytes(geometry));
}

/// Query rows of the whole call.
FLASHLATENT_HOST_DEVICE std::int64_t all_rows(const Shape& shape) {
  return static_cast<std::int64_t>(shape.requests) * shape.request_rows * shape.kv_heads;
}

/// Upper bound of the units' partial rows: each query row once, and a tile for every further unit.
FLASHLATENT_HOST_DEVICE std::int64_t max_partial_rows(const Shape& shape) {
  if (shape.requests == 0) return 0;
  return all_rows(shape) + static_cast<std::int64_t>(shape.workers) * shape.tile_rows;
}

/// Rows in the workspace: the units' partial rows, and each query row's own result, which a kernel may have
/// to keep.
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

/// The share of the member number `index` of a tile.
FLASHLATENT_HOST_DEVICE Share share_of(const Shape& shape, const Tile& tile, std::int32_t index) {
  return {tile.tokens, tile.splits, tile.row_begin + index * shape.request_rows,
          tile.members * shape.request_rows};
}

/// Do all query tokens of a request of `length` tokens see all `tokens` of its prefix? They did when the
/// groups were found, but lengths may have changed.
FLASHLATENT_HOST_DEVICE bool sees_prefix(std::int32_t tokens, std::int32_t length, std::int32_t unseen) {
  return tokens > 0 && length >= tokens + unseen;
}

/// Tokens that a request attends to by itself: those after its prefix if it sees all of the prefix, else all.
FLASHLATENT_HOST_DEVICE std::int32_t own_length(const Shape& shape, std::int32_t length, const Share& share) {
  const std::int32_t counted = length < shape.max_tokens ? length : shape.max_tokens;
  if (sees_prefix(share.tokens, counted, shape.unseen)) return counted - share.tokens;
  return counted > 0 ? counted : 0;
}

}  // namespace flashlatent::prefix
