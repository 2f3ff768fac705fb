// The producer's side: loads KV blocks from pages into tiles of shared memory. Each tile has a barrier that
// says it is full and one that says it may be overwritten, so memory is refilled tile by tile as the last
// readers finish.
//
// The kernel decides where tiles lie and in which order they are filled. It gives a loader a Pipe:
//   Element, kQkChunks          the tiles' type; tiles of 64 columns in a block
//   begin_range()               called before a segment's first block
//   chunk(i)                    which 64 columns the block's i-th tile holds
//   tile(i), full(i)            the tile and its barrier
//   wait_empty(i)               waits until the tile may be announced and overwritten
//   live()                      where to write which of the block's tokens count, before tile 0 is full
//   next_block()                goes on to the next block
//
// Loaders are tma_loader.cuh, block_loader.cuh and token_loader.cuh; from an fp8_656 cache
// fp8_staged_loader.cuh, fp8_register_loader.cuh and fp8_unit_loader.cuh; by lists listed_bulk_loader.cuh and
// listed_staged_loader.cuh. Each has:
//   prepare(map)                what may be done before the previous launch is done
//   threads(cache), kThreads    how many threads call it, and the most
//   kArrivals                   arrivals on a full barrier, beside the bytes of copies
//   kZeroesDead                 do tokens that do not count become rows of zeros?
//   kReaderFences               must a reader of a tile order the loader's writes before wgmma?
//   kAllReadersArrive           do all lanes that read a tile give it back, and not one of a warp?
//                               racecheck does not see that one is enough where threads write tiles
//   kPairs                      tiles 2 i - 1 and 2 i are filled, and given back, together; the barriers of
//                               tile 2 i stand for both. If a block has an even number of tiles: 2 i and
//                               2 i + 1, and the latter's barriers
//   kLists                      (optional) tokens are of two lists (listed_tokens.cuh)
//   kUnits                      (optional) tiles are in units of tokens (fp8_units.cuh), which
//                               pipe.units() gets; halves of V share barriers
//   kLeavesScale                (optional) tiles are codes of an e4m3 cache, without its scale
//   kWholeBlocks                a block is filled, and given back, as one
//   kSparesRegisters            registers are short: what is not used in every block is kept in memory
//   kOneLoop                    (optional) a part that is one item goes through the loop over segments,
//                               because a second copy of load() would spill
//   Memory                      what the loader keeps in shared memory
//   look_ahead(range)           announces the range that load() gets next; does not wait for memory
//   load(pipe, range, announce) loads the range; calls `announce` once on the way, for the next one
#pragma once

#include "cuda/sm90/walk/kv_tokens.cuh"
#include "cuda/sm90/walk/segments.cuh"
#include "cuda/sm90/walk/work_queue.cuh"

namespace flashlatent::sm90 {

/// Arrivals by which a warpgroup gives a tile back: all lanes, or one lane of each warp.
template <class Loader>
inline constexpr int kReleases = Loader::kAllReadersArrive ? 128 : 4;

template <class Loader>
inline constexpr bool kHasOneLoop = requires {
  requires Loader::kOneLoop;
};

/// Keeps a variable in memory, so that it takes no register while it is unused.
template <class T>
__device__ __forceinline__ void keep_in_memory(T& x) {
  asm volatile("" ::"l"(&x) : "memory");
}

/// Finds the segment of a part that is one whole item, as most parts are with about as many requests as CTAs.
/// False if the part is no whole item.
template <bool kLists = false>
__device__ __forceinline__ bool find_one_item(const DecodeArguments& args, const PartPlace<>& place,
                                              schedule::Segment& segment) {
  const schedule::Geometry& g = args.geometry;
  const schedule::Cut begin = place.begin(args), end = place.end(args);
  if (args.query.begins != nullptr || !schedule::may_be_one_item(g, begin, end)) return false;
  // Loaded together with the successor.
  const std::int32_t given = schedule::length_of(g, item_lengths<kLists>(args.cache), begin.request);
  if (!schedule::same_item(schedule::item_after(g, begin, args.successors), end)) return false;
  const std::int32_t length = schedule::tokens_of(g, given);
  const int blocks = schedule::blocks_of(g, length);
  segment = {begin.round, begin.request, length, 0, blocks, -1};
  return true;
}

/// Loads a part that is one whole item, without the walk.
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

/// The loading role: loads this CTA's segments, one after another, into `pipe`. `set_up` returns when the
/// pipe's barriers are ready; the plan is read meanwhile. `tell` gets each segment before its blocks.
/// kLooksAhead: see Walker.
template <int kTeam = 1, bool kLooksAhead = true, class Loader, class Pipe, bool kTurns, class SetUp,
          class Tell>
__device__ __forceinline__ void load_segments(const DecodeArguments& args, Loader loader, Pipe pipe,
                                              const PartPlace<kTeam, kTurns>& place, SetUp set_up,
                                              Tell tell) {
  // Only if the walk is in memory, where it takes 2 us. In registers it takes too little time for separate
  // code.
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
      // Without kOneLoop `is_only` is never true; even so, capturing it here changes the generated code.
      if constexpr (kHasOneLoop<Loader> && !kTurns) {
        more = !is_only && segments.next(next);
      } else {
        more = segments.next(next);
      }
      if (more) loader.look_ahead(range_of<Loader>(args, next, segments.tile_of(next)));
    });
  }
}

}  // namespace flashlatent::sm90
