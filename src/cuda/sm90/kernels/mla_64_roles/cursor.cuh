// The place in the list of segments that the loading warps have reached. It is in shared memory, since they
// have no registers for it.
#pragma once

#include "cuda/sm90/kernels/mla_64_roles/stages.cuh"
#include "cuda/sm90/walk/kv_tokens.cuh"
#include "cuda/sm90/walk/turn_items.cuh"

namespace flashlatent::mla_64_roles {

/// The cursor at a segment's begin. Places before the first token stand for the tile's query rows.
__device__ __forceinline__ Cursor cursor_at(const sm90::DecodeArguments& args, const sm90::Work& work,
                                            int item, std::uint32_t list_parity) {
  const int begin = first_token(work.segment);
  return {
      sm90::block_range(args.cache, work.segment, work.tile).entries,
      begin,
      begin - sm90::kTileRows,
      last_token(work.segment),
      min(work.segment.length, work.tile.seen_in_context(args, work.segment.length, work.tile.rows - 1).end),
      work.tile.kv_head,
      item,
      list_parity};
}

/// A whole warp moves its cursor to the next segment of the list that has tokens, if there is one.
__device__ __forceinline__ void find_item(Cursor& cursor, sm90::SegmentList& segments,
                                          const sm90::DecodeArguments& args, int item,
                                          std::uint32_t list_parity) {
  Cursor at = {};
  while (++item < sm90::kListed) {
    ptx::wait(item == 0 ? segments.first_listed : segments.all_listed, list_parity);
    const sm90::Work& work = segments.list[item];
    if (work.is_end()) break;
    if (stages_of(work.segment) <= 0) continue;
    at = cursor_at(args, work, item, list_parity);
    break;
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) cursor = at;
  __syncwarp();
}

/// The same for a CTA's items by kTurns (walk/turn_items.cuh): the first item with tokens, from `from` on.
__device__ __forceinline__ void find_turn(Cursor& cursor, TurnPlace& place, const sm90::DecodeArguments& args,
                                          schedule::Cut from) {
  const schedule::Geometry& g = args.geometry;
  int length = 0;
  for (; g.rounds > from.round; from = schedule::turn_after(g, from)) {
    length = schedule::tokens_of(g, schedule::length_of(g, args.cache.lengths, from.request));
    if (length > 0) break;
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    // Sparse prefill has one KV head, and a query token sees all of its tokens. At the end there are 0
    // tokens.
    cursor = {args.cache.entries + from.request * args.cache.entries_stride,
              0,
              length > 0 ? -sm90::kTileRows : 0,
              length,
              length,
              0,
              0,
              0};
    place = {from.round, from.request};
  }
  __syncwarp();
}

/// The tile's query rows that the places from `token` on stand for, in Q's tensor map.
__device__ __forceinline__ sm90::RowsInLine query_rows_at(const Cursor& at, const sm90::SegmentList& segments,
                                                          const sm90::DecodeArguments& args, int token) {
  const sm90::RowTile& tile = segments.list[at.item].tile;
  const sm90::RowsInLine rows = tile.in_line(args.query);
  return {rows.request, rows.first + token - (at.begin - sm90::kTileRows)};
}

}  // namespace flashlatent::mla_64_roles
