// Tokens of fp8_584 caches as loader_584.cuh brings them, where the loader has 24 registers: lists are in
// shared memory, and of a call's first item nobody waits for a list of segments.
#pragma once

#include "core/fp8_584.h"
#include "cuda/fp8/ring_place.cuh"
#include "cuda/fp8/token_pairs.cuh"
#include "cuda/parts/fp8_rows.cuh"
#include "cuda/parts/listed_tokens.cuh"
#include "cuda/parts/mask.cuh"
#include "cuda/parts/segment_list.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::fp8 {

/// What tokens that do not count are copied from: zeros, and scales of 1.
struct alignas(16) DeadToken {
  std::uint8_t data[fp8_584::kDataBytes];
  std::uint8_t scales[fp8_584::kScaleBytes];
};
__device__ constexpr DeadToken kDeadToken = {{}, {127, 127, 127, 127, 127, 127, 127, 0}};

/// Of a loading warp: the lists of the segment at hand and of the next one.
struct ListedRanges {
  parts::ListedRange of[2];
};

/// By four warps, each 16 tokens of every block: half a warp a block of two, whose addresses are found
/// together. Entries are asked for four blocks ahead. What a warp needs of its lists is in shared memory.
template <class Shared>
class ListedRowLoader {
  using Config = typename Shared::Config;

 public:
  static constexpr int kThreads = 128, kWarpTokens = 16;
  /// A lane of each warp announces the bytes of rows; each token's scales arrive by themselves.
  static constexpr int kArrivals = kThreads / 32 + kThreads / 2;

  __device__ __forceinline__ ListedRowLoader(const parts::CacheArguments& cache, Shared& shared, int thread)
      : cache_(cache), shared_(shared), thread_(thread) {}

  /// Finds the lists of the segment that is loaded next, and asks for its first entries. kIsWhole: all blocks
  /// of its lists; else those that the segment says.
  template <bool kIsWhole>
  __device__ __forceinline__ void look_ahead(const parts::DecodeArguments& args, const parts::Work& work) {
    int guess = -1;
    if constexpr (kIsWhole) guess = first_entry(args, work.tile);
    __syncwarp();  // all lanes are done with the segment before the one at hand
    parts::ListedRange& range = ranges().of[next_];
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

  /// Loads the segment that was looked ahead at; calls `announce` once on the way, for the next one.
  template <class Announce>
  __device__ __forceinline__ void load(Announce announce) {
    const parts::ListedRange& range = ranges().of[next_];
    next_ ^= 1;
    int entry = entry_, ahead = entry_ahead_;
    // Once all slots are asked for: who walks on may wait for memory.
    const int last = min(range.begin + Config::kSlots, range.end) - 1;
    if (range.begin == range.end) announce();
#pragma unroll 1
    for (int block = range.begin; block < range.end; block += 2) {
      const Row row = locate(range, entry, block);
      entry = ahead;
      ahead = look_up(range, block + 4);
      copy(row, 0);
      if (!has_query_) wait_for_query();
      if (block + 1 < range.end) copy(row, 1);
      if (block == last || block + 1 == last) announce();
    }
  }

 private:
  static constexpr std::uint32_t kWarpBytes = kWarpTokens * fp8_584::kDataBytes;

  __device__ __forceinline__ ListedRanges& ranges() const {
    return shared_.lists.of_warp[thread_ / 32];
  }

  /// As parts::listed_range(), by a lane each list: their lengths come at once.
  __device__ __forceinline__ void find_lists(parts::ListedRange& range, const parts::DecodeArguments& args,
                                             const schedule::Segment& segment,
                                             const parts::RowTile& tile) const {
    const int i = thread_ % 32;
    if (i >= 2) return;
    const parts::ListedCache& cache = cache_.listed[i];
    const schedule::TokenSpan span =
        schedule::span_of(args.geometry, cache_.list_lengths, i, segment.request);
    range.lists.entries[i] =
        cache.entries + tile.request * cache.entries_stride + tile.first_token * cache.entries_token_stride;
    range.lists.tokens[i] = span.count();
    if (i == 0) range.lists.first = span.begin;
  }

  /// Q is asked for after a call's first block, and needed as soon (loader.cuh). Not by has_query: where the
  /// call's first item is empty, or Q comes a second time, its next phase may be over before a warp asks.
  __device__ __forceinline__ void wait_for_query() {
    ptx::wait(shared_.lists.first_query, 0);
    has_query_ = true;
  }

  /// Of a pair of blocks, which this lane has; and of its tokens, which.
  __device__ __forceinline__ int half() const {
    return thread_ % 32 / kWarpTokens;
  }
  __device__ __forceinline__ int token() const {
    return thread_ / 32 * kWarpTokens + thread_ % kWarpTokens;
  }
  /// Of the pair that begins at `block`.
  __device__ __forceinline__ parts::ListPlace place(const parts::ListedRange& range, int block) const {
    return parts::place_in_list(range.lists, block + half(), token());
  }
  __device__ __forceinline__ int look_up(const parts::ListedRange& range, int block) const {
    if (block + half() >= range.end) return -1;
    return parts::entry_of(cache_, range.lists, place(range, block));
  }
  /// Of an item's first two blocks, asked for before its lengths are known, if they are of its first list,
  /// which goes by indices.
  __device__ __forceinline__ int first_entry(const parts::DecodeArguments& args,
                                             const parts::RowTile& tile) const {
    const parts::ListedCache& first = cache_.listed[0];
    const int at = half() * 64 + token();
    if (at >= args.geometry.list[0].reach) return -1;
    return __ldg(first.entries + tile.request * first.entries_stride +
                 tile.first_token * first.entries_token_stride + at);
  }

  struct Row {
    const std::uint8_t* data;
    int scales_offset;
    std::uint32_t live;  // of the warp's tokens of both blocks
  };
  __device__ __forceinline__ Row locate(const parts::ListedRange& range, int entry, int block) const {
    const parts::ListedToken found = token_of(cache_, range.lists, place(range, block), entry, 0);
    const std::uint32_t live = __ballot_sync(0xffffffff, found.data != nullptr);
    if (found.data == nullptr) {
      return {reinterpret_cast<const std::uint8_t*>(&kDeadToken), fp8_584::kDataBytes, live};
    }
    return {found.data, parts::Fp8_584Rows::scales_offset(found.page_size, found.in_page), live};
  }

  /// The first or the second block of a pair.
  __device__ __forceinline__ void copy(const Row& row, int which) {
    const int slot = place_.slot();
    ptx::wait(shared_.empty[slot], place_.parity() ^ 1);
    ptx::Barrier& full = shared_.full[slot];
    if (thread_ % 32 == 0) {
      reinterpret_cast<std::uint16_t*>(&shared_.live[slot])[thread_ / 32] =
          static_cast<std::uint16_t>(row.live >> which * kWarpTokens);
      ptx::arrive_expecting(full, kWarpBytes);
    }
    __syncwarp();
    if (half() == which) {
      std::uint8_t* block = shared_.blocks[slot];
      ptx::copy_bytes(block + pairs::data_offset(token()), row.data, fp8_584::kDataBytes, full, policy_);
      ptx::copy_8_bytes(ptx::shared_address(block + pairs::scale_offset(token())),
                        row.data + row.scales_offset);
      ptx::copy_arrive(full);
    }
    __syncwarp();
    place_.next();
  }

  const parts::CacheArguments& cache_;
  Shared& shared_;
  const int thread_;
  const std::uint64_t policy_ = ptx::evict_first_policy();
  RingPlace<Config> place_;
  int next_ = 0;                       // of two ranges
  int entry_ = -1, entry_ahead_ = -1;  // of the next segment's first four blocks
  bool has_query_ = false;             // of the first segment with blocks
};

/// The loading role, of segments that a computing warp lists. `first`: the first one if shapes tell it, a
/// whole item, else an end; it is loaded before the list is there.
template <class Loader>
__device__ __forceinline__ void load_listed_rows(const parts::DecodeArguments& args,
                                                 parts::SegmentList& segments, const parts::Work& first,
                                                 Loader loader) {
  parts::wait_for_launch_before();
  parts::ListPosition position(segments);
  bool known = !first.is_end(), looks_ahead = known;
  if (known) loader.template look_ahead<true>(args, first);
  for (; known || !position.get().is_end(); position.next()) {
    if (!looks_ahead) loader.template look_ahead<false>(args, position.get());
    known = looks_ahead = false;
    loader.load([&] {
      const parts::Work* next = position.next_listed();
      if (next == nullptr || next->is_end()) return;
      loader.template look_ahead<false>(args, *next);
      looks_ahead = true;
    });
  }
}

}  // namespace flashlatent::fp8
