// KV blocks from pages into tiles of shared memory: the producer's side. Each tile has a barrier that says it
// is full and one that says it may be overwritten, so that memory is refilled tile by tile as last readers
// finish.
//
// Where tiles lie and in which order they are filled is the kernel's matter; it gives a loader a Pipe:
//   Element, kQkChunks          the tiles' type; tiles of 64 columns a block
//   begin_range()               before a segment's first block
//   chunk(i)                    which 64 columns the block's i-th tile holds
//   tile(i), full(i)            the tile and its barrier
//   wait_empty(i)               until it may be announced and overwritten
//   live()                      which of the block's tokens count; written before tile 0 is full
//   next_block()
//
// A loader is one of tma_loader.cuh, block_loader.cuh, token_loader.cuh, from an fp8_656 cache
// fp8_staged_loader.cuh, fp8_register_loader.cuh and fp8_unit_loader.cuh, or by lists
// listed_bulk_loader.cuh and listed_staged_loader.cuh:
//   prepare(map)                what may be done before the launch before this one is done
//   threads(cache), kThreads    how many call it, and at the most
//   kArrivals                   arrivals on a full barrier, beside the bytes of copies
//   kZeroesDead                 whether tokens that do not count become rows of zeros
//   kReaderFences               whether who waits for a tile must order its writes before wgmma
//   kAllReadersArrive           whether all lanes that read a tile give it back, not one a warp: racecheck
//                               does not see that this is enough where threads write tiles
//   kPairs                      tiles 2 i - 1 and 2 i are filled, and given back, together; the barriers of
//                               tile 2 i stand for both. Of a block of an even number of tiles: 2 i and
//                               2 i + 1, by the latter's
//   kLists                      (if there is one) tokens are of two lists (listed_tokens.cuh)
//   kUnits                      (if there is one) tiles are in units of tokens (fp8_units.cuh), which
//                               pipe.units() gets; halves of V share barriers
//   kWholeBlocks                a block is filled, and given back, as one
//   kSparesRegisters            whether registers are short: what is not used a block is kept in memory
//   kOneLoop                    (if there is one) a part that is one item goes through the loop over
//                               segments: a second copy of load() would spill
//   Memory                      what it keeps in shared memory
//   look_ahead(range)           announces the range that load() gets next; does not wait for memory
//   load(pipe, range, announce) loads it; calls `announce` once on the way, for the one after
#pragma once

#include "cuda/parts/kv_tokens.cuh"
#include "cuda/parts/segments.cuh"
#include "cuda/parts/work_queue.cuh"

namespace flashlatent::parts {

/// Arrivals by which a warpgroup gives a tile back: of all lanes, or of one a warp.
template <class Loader>
inline constexpr int kReleases = Loader::kAllReadersArrive ? 128 : 4;

template <class Loader>
inline constexpr bool kHasOneLoop = requires {
  requires Loader::kOneLoop;
};

/// A variable for which no register is kept while it is not used.
template <class T>
__device__ __forceinline__ void keep_in_memory(T& x) {
  asm volatile("" ::"l"(&x) : "memory");
}

/// The segment of a part that is one item, all of it, as most are where requests are about as many as CTAs.
/// Returns whether it is one.
template <bool kLists = false>
__device__ __forceinline__ bool find_one_item(const DecodeArguments& args, const PartPlace<>& place,
                                              schedule::Segment& segment) {
  const schedule::Geometry& g = args.geometry;
  const schedule::Cut begin = place.begin(args), end = place.end(args);
  if (args.query.begins != nullptr || !schedule::may_be_one_item(g, begin, end)) return false;
  const std::int32_t given =
      schedule::length_of(g, item_lengths<kLists>(args.cache), begin.request);  // beside the successor
  if (!schedule::same_item(schedule::item_after(g, begin, args.successors), end)) return false;
  const std::int32_t length = schedule::tokens_of(g, given);
  const int blocks = schedule::blocks_of(g, length);
  segment = {begin.round, begin.request, length, 0, blocks, -1};
  return true;
}

/// Loads such a part, without the walk.
template <class Loader, class Pipe, class SetUp, class Tell>
__device__ __forceinline__ bool load_one_item(const DecodeArguments& args, Loader& loader, Pipe& pipe,
                                              const PartPlace<>& place, SetUp set_up, Tell tell) {
  schedule::Segment segment;
  if (!find_one_item<kTakesLists<Loader>>(args, place, segment)) return false;
  const RowTile tile = row_tile(args, segment.request, segment.round, place.lane());
  const auto range = range_of<Loader>(args, segment, tile);
  loader.look_ahead(range);
  set_up();
  tell(Work{segment, tile});
  loader.load(pipe, range, [] {});
  return true;
}

/// The loading role: this CTA's segments, one after another, into `pipe`. `set_up` returns when the pipe's
/// barriers are ready; the plan is read meanwhile. `tell` gets each segment before its blocks.
/// kLooksAhead: the walker's.
template <int kTeam = 1, bool kLooksAhead = true, class Loader, class Pipe, bool kTurns, class SetUp,
          class Tell>
__device__ __forceinline__ void load_segments(const DecodeArguments& args, Loader loader, Pipe pipe,
                                              const PartPlace<kTeam, kTurns>& place, SetUp set_up,
                                              Tell tell) {
  // Where the walk is in memory it takes 2 us; in registers too little for code of its own.
  if constexpr (kTeam == 1 && !kTurns && Loader::kSparesRegisters && !kHasOneLoop<Loader>) {
    if (load_one_item(args, loader, pipe, place, set_up, tell)) return;
  }
  Segments<kTeam, kLooksAhead, kTakesLists<Loader>, kTurns> segments(args, place);
  schedule::Segment segment, next;
  if constexpr (Loader::kSparesRegisters || kTurns) {
    keep_in_memory(segments);
    keep_in_memory(segment);
    keep_in_memory(next);
  }
  bool more = false;
  bool is_only = false;
  if constexpr (kHasOneLoop<Loader> && !kTurns) {
    is_only = find_one_item<kTakesLists<Loader>>(args, place, segment);
    more = is_only || segments.next(segment);
  } else {
    more = segments.next(segment);
  }
  if (more) loader.look_ahead(range_of<Loader>(args, segment, segments.tile_of(segment)));
  set_up();
  for (; more; segment = next) {
    tell(Work{segment, segments.tile_of(segment)});
    loader.load(pipe, range_of<Loader>(args, segment, segments.tile_of(segment)), [&] {
      // Where there is nothing to ask, `is_only` in this closure alone makes other code of it.
      if constexpr (kHasOneLoop<Loader> && !kTurns) {
        more = !is_only && segments.next(next);
      } else {
        more = segments.next(next);
      }
      if (more) loader.look_ahead(range_of<Loader>(args, next, segments.tile_of(next)));
    });
  }
}

}  // namespace flashlatent::parts
