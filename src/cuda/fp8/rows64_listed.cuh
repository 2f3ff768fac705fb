// The loading role of the 64-row kernel where tokens are of two lists. It has 32 registers: what a warp needs
// of its lists is in shared memory, and of a call's first item nobody waits for a list of segments.
#pragma once

#include "cuda/fp8/block_loader.cuh"
#include "cuda/fp8/rows64_smem.cuh"

namespace flashlatent::fp8::rows64 {

/// A loading warp's segments, with their lists.
template <class Shared>
class ListedSegments {
 public:
  __device__ __forceinline__ ListedSegments(const parts::DecodeArguments& args, Shared& shared, int thread)
      : args_(args),
        ranges_(shared.lists.of_warp[thread / 32]),
        thread_(thread),
        loader_(args.cache, shared, thread) {}

  /// Finds the lists of the segment that is loaded next, and asks for its first entries. kIsWhole: all blocks
  /// of its lists, whose entries are asked for before lengths are known; else those that the segment says.
  template <bool kIsWhole>
  __device__ __forceinline__ void look_ahead(const parts::Work& work) {
    __syncwarp();  // all lanes are done with the segment before the one at hand
    parts::ListedRange& range = ranges_.of[next_];
    if constexpr (kIsWhole) {
      find_lists(range, work, [&](int list) {
        return schedule::TokenSpan{0, args_.geometry.list[list].reach};
      });
      loader_.guess(range);
      __syncwarp();
    }
    find_lists(range, work, [&](int list) {
      return schedule::span_of(args_.geometry, args_.cache.list_lengths, list, work.segment.request);
    });
    if constexpr (!kIsWhole) {
      if (thread_ % 32 == 0) {
        range.begin = work.segment.block_begin;
        range.end = work.segment.block_end;
      }
      __syncwarp();
    }
    loader_.look_ahead(range);
  }

  /// Loads the segment that was looked ahead at; calls `announce` once on the way, for the next one.
  template <class Announce>
  __device__ __forceinline__ void load(Announce announce) {
    const parts::ListedRange& range = ranges_.of[next_];
    next_ ^= 1;
    loader_.load(range, announce);
  }

 private:
  /// As parts::listed_range() of whole lists, by a lane each list: their lengths come at once.
  template <class SpanOf>
  __device__ __forceinline__ void find_lists(parts::ListedRange& range, const parts::Work& work,
                                             SpanOf span_of) const {
    const int i = thread_ % 32;
    if (i < 2) {
      const parts::ListedCache& cache = args_.cache.listed[i];
      const schedule::TokenSpan span = span_of(i);
      range.lists.entries[i] = cache.entries + work.tile.request * cache.entries_stride +
                               work.tile.first_token * cache.entries_token_stride;
      range.lists.tokens[i] = span.count();
      if (i == 0) range.lists.first = span.begin;
    }
    __syncwarp();
    if (i == 0) {
      range.lists.blocks = (range.lists.tokens[0] + 63) / 64;
      range.begin = 0;
      range.end = range.lists.blocks + (range.lists.tokens[1] + 63) / 64;
    }
    __syncwarp();
  }

  const parts::DecodeArguments& args_;
  ListedRanges& ranges_;
  const int thread_;
  int next_ = 0;  // of two ranges
  LoaderOf<Shared> loader_;
};

/// The loading role, of segments that a computing warp lists. `first`: the first one if shapes tell it, a
/// whole item, else an end; it is loaded before the list is there.
template <class Shared>
__device__ __forceinline__ void load_lists(const parts::DecodeArguments& args, Shared& shared, int thread,
                                           const parts::Work& first) {
  ListedSegments<Shared> segments(args, shared, thread);
  parts::wait_for_launch_before();
  parts::ListPosition position(shared.segments);
  bool known = !first.is_end(), looks_ahead = known;
  if (known) segments.template look_ahead<true>(first);
  for (; known || !position.get().is_end(); position.next()) {
    if (!looks_ahead) segments.template look_ahead<false>(position.get());
    known = looks_ahead = false;
    segments.load([&] {
      const parts::Work* next = position.next_listed();
      if (next == nullptr || next->is_end()) return;
      segments.template look_ahead<false>(*next);
      looks_ahead = true;
    });
  }
}

}  // namespace flashlatent::fp8::rows64
