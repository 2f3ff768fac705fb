// The loading role of the 64-row kernel if tokens are of two lists. It has 32 registers: what a warp needs of
// its lists is in shared memory. A call's first item does not wait for the list of segments.
#pragma once

#include "cuda/sm90/kernels/fp8/block_loader.cuh"
#include "cuda/sm90/kernels/fp8/rows64_smem.cuh"

namespace flashlatent::fp8::rows64 {

/// A loading warp's segments, with their lists.
template <class Shared>
class ListedSegments : LoaderOf<Shared> {
  using Loader = LoaderOf<Shared>;
  using Loader::cache_, Loader::shared_, Loader::thread_, Loader::entry_, Loader::entry_ahead_;
  using Loader::half, Loader::look_up, Loader::token;

 public:
  using Loader::Loader;

  /// Finds the lists of the segment that is loaded next, and starts loading its first entries. kIsWhole: all
  /// blocks of its lists; else the segment's blocks.
  template <bool kIsWhole>
  __device__ __forceinline__ void look_ahead(const sm90::DecodeArguments& args, const sm90::Work& work) {
    int guess = -1;
    if constexpr (kIsWhole) guess = first_entry(args, work.tile);
    __syncwarp();  // all lanes are done with the segment before the present one
    sm90::ListedRange& range = ranges().of[next_];
    find_lists(range, args, work.segment, work.tile);
    __syncwarp();
    if (thread_ % 32 == 0) {
      range.lists.blocks = (range.lists.tokens[0] + 63) / 64;
      range.begin = kIsWhole ? 0 : work.segment.block_begin;
      range.end = kIsWhole ? range.lists.blocks + (range.lists.tokens[1] + 63) / 64 : work.segment.block_end;
    }
    __syncwarp();
    if (kIsWhole && half() < range.lists.blocks) {
      entry_ = half() * 64 + token() < range.lists.tokens[0] ? guess : -1;
    } else {
      entry_ = look_up(range, range.begin);
    }
    entry_ahead_ = look_up(range, range.begin + 2);
  }

  /// Loads the segment that look_ahead() got; calls `announce` once meanwhile, for the next one.
  template <class Announce>
  __device__ __forceinline__ void load(Announce announce) {
    const sm90::ListedRange& range = ranges().of[next_];
    next_ ^= 1;
    Loader::load(range, announce);
  }

 private:
  __device__ __forceinline__ ListedRanges& ranges() const { return shared_.lists.of_warp[thread_ / 32]; }

  /// As sm90::listed_range(), with a lane for each list: both lengths come at once.
  __device__ __forceinline__ void find_lists(sm90::ListedRange& range, const sm90::DecodeArguments& args,
                                             const schedule::Segment& segment,
                                             const sm90::RowTile& tile) const {
    const int i = thread_ % 32;
    if (i >= 2) return;
    const sm90::ListedCache& cache = cache_.listed[i];
    const TokenSpan span = schedule::span_of(args.geometry, cache_.list_lengths, i, segment.request);
    range.lists.entries[i] =
        cache.entries + tile.request * cache.entries_stride + tile.first_token * cache.entries_token_stride;
    range.lists.tokens[i] = span.count();
    if (i == 0) range.lists.first = span.begin;
  }

  /// Loads entries of an item's first two blocks before its lengths are known, if they are of its first list,
  /// which has indices.
  __device__ __forceinline__ int first_entry(const sm90::DecodeArguments& args,
                                             const sm90::RowTile& tile) const {
    const sm90::ListedCache& first = cache_.listed[0];
    const int at = half() * 64 + token();
    if (at >= args.geometry.list[0].reach) return -1;
    return __ldg(first.entries + tile.request * first.entries_stride +
                 tile.first_token * first.entries_token_stride + at);
  }

  int next_ = 0;  // of two ranges
};

/// The loading role, for segments that a computing warp lists. `first`: the first segment, a whole item, if
/// shapes tell it, else an end; it is loaded before the list is ready.
template <class Shared>
__device__ __forceinline__ void load_lists(const sm90::DecodeArguments& args, sm90::SegmentList& list,
                                           const sm90::Work& first, ListedSegments<Shared> segments) {
  sm90::wait_for_launch_before();
  sm90::ListPosition position(list);
  bool known = !first.is_end(), looks_ahead = known;
  if (known) segments.template look_ahead<true>(args, first);
  for (; known || !position.get().is_end(); position.next()) {
    if (!looks_ahead) segments.template look_ahead<false>(args, position.get());
    known = looks_ahead = false;
    segments.load([&] {
      const sm90::Work* next = position.next_listed();
      if (next == nullptr || next->is_end()) return;
      segments.template look_ahead<false>(args, *next);
      looks_ahead = true;
    });
  }
}

}  // namespace flashlatent::fp8::rows64
