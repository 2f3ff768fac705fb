// Tokens of fp8_584 caches as loader_584.cuh brings them, where the loader has 24 registers: lists are in shared
// memory, and of a call's first item nobody waits for a list of segments.
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

/// By four warps, each 16 tokens of every block. What a warp needs of its lists is in shared memory.
template <class Shared>
class ListedRowLoader {
  using Config = typename Shared::Config;

 public:
  static constexpr int kThreads = 128, kWarpTokens = 16;
  /// A lane of each warp announces the bytes of rows; each token's scales arrive by themselves.
  static constexpr int kArrivals = kThreads / 32 + kThreads / 2;

  __device__ __forceinline__ ListedRowLoader(const parts::CacheArguments& cache, Shared& shared, int thread)
      : cache_(cache), shared_(shared), lane_(thread % 32), first_(thread / 32 * kWarpTokens) {}

  /// Finds the lists of the segment that is loaded next, and asks for its first entries. kIsWhole: all blocks
  /// of its lists; else those that the segment says.
  template <bool kIsWhole>
  __device__ __forceinline__ void look_ahead(const parts::DecodeArguments& args, const parts::Work& work) {
    int guess = -1;
    if constexpr (kIsWhole) guess = first_entry(args, work.tile);
    __syncwarp();  // all lanes are done with the segment before the one at hand
    parts::ListedRange& range = ranges().of[next_];
    if (lane_ == 0) {
      range = parts::listed_range(args, work.segment, work.tile);
      if constexpr (kIsWhole) {
        range.begin = 0;
        range.end = range.lists.blocks + (range.lists.tokens[1] + 63) / 64;
      }
    }
    __syncwarp();
    if (kIsWhole && range.lists.blocks > 0) {
      next_entry_ = token() < range.lists.tokens[0] ? guess : -1;
    } else {
      next_entry_ = range.begin < range.end ? look_up(range, range.begin) : -1;
    }
  }

  /// Loads the segment that was looked ahead at; calls `announce` once on the way, for the next one.
  template <class Announce>
  __device__ __forceinline__ void load(Announce announce) {
    const parts::ListedRange& range = ranges().of[next_];
    next_ ^= 1;
    int entry = next_entry_;
    // Once all slots are asked for: who walks on may wait for memory.
    const int last = min(range.begin + Config::kSlots, range.end) - 1;
    if (range.begin == range.end) announce();
#pragma unroll 1
    for (int block = range.begin; block < range.end; ++block) {
      const parts::ListedToken token = token_of(cache_, range.lists, place(range, block), entry, 0);
      if (block + 1 < range.end) entry = look_up(range, block + 1);
      copy(token);
      if (block == last) announce();
      if (!has_query_) wait_for_query();
    }
  }

 private:
  static constexpr std::uint32_t kWarpBytes = kWarpTokens * fp8_584::kDataBytes;

  __device__ __forceinline__ ListedRanges& ranges() const {
    return shared_.lists.of_warp[first_ / kWarpTokens];
  }

  /// Q is asked for after a call's first block, and needed as soon (loader.cuh).
  __device__ __forceinline__ void wait_for_query() {
    ptx::wait(shared_.has_query, 0);
    has_query_ = true;
  }

  /// This lane's token of a block; the upper half warp has the same as the lower.
  __device__ __forceinline__ int token() const { return first_ + lane_ % kWarpTokens; }
  __device__ __forceinline__ parts::ListPlace place(const parts::ListedRange& range, int block) const {
    return parts::place_in_list(range.lists, block, token());
  }
  /// Of an item's first block, asked for before its lengths are known, if the item has tokens in its first list,
  /// which go by indices.
  __device__ __forceinline__ int first_entry(const parts::DecodeArguments& args,
                                             const parts::RowTile& tile) const {
    const parts::ListedCache& first = cache_.listed[0];
    if (token() >= args.geometry.list[0].reach) return -1;
    return __ldg(first.entries + tile.request * first.entries_stride +
                 tile.first_token * first.entries_token_stride + token());
  }
  __device__ __forceinline__ int look_up(const parts::ListedRange& range, int block) const {
    return parts::entry_of(cache_, range.lists, place(range, block));
  }

  __device__ __forceinline__ void copy(const parts::ListedToken& token) {
    const std::uint32_t live = __ballot_sync(0xffffffff, token.data != nullptr) & 0xffff;
    const std::uint8_t* data = reinterpret_cast<const std::uint8_t*>(&kDeadToken);
    int scales_offset = fp8_584::kDataBytes;
    if (token.data != nullptr) {
      data = token.data;
      scales_offset = parts::Fp8_584Rows::scales_offset(token.page_size, token.in_page);
    }
    const int slot = place_.slot(), row = first_ + lane_;
    ptx::wait(shared_.empty[slot], place_.parity() ^ 1);
    ptx::Barrier& full = shared_.full[slot];
    if (lane_ == 0) {
      reinterpret_cast<std::uint16_t*>(&shared_.live[slot])[first_ / kWarpTokens] =
          static_cast<std::uint16_t>(live);
      ptx::arrive_expecting(full, kWarpBytes);
    }
    __syncwarp();
    if (lane_ < kWarpTokens) {
      std::uint8_t* block = shared_.blocks[slot];
      ptx::copy_bytes(block + pairs::data_offset(row), data, fp8_584::kDataBytes, full, policy_);
      ptx::copy_8_bytes(ptx::shared_address(block + pairs::scale_offset(row)), data + scales_offset);
      ptx::copy_arrive(full);
    }
    place_.next();
  }

  const parts::CacheArguments& cache_;
  Shared& shared_;
  const int lane_, first_;
  const std::uint64_t policy_ = ptx::evict_first_policy();
  RingPlace<Config> place_;
  int next_ = 0;  // of two ranges
  int next_entry_ = -1;
  bool has_query_ = false;  // of the first segment with blocks
};

/// The loading role, of segments that a computing warp lists. Where a part begins with a whole item, shapes say
/// which: it is asked for before the list is there.
template <class Loader>
__device__ __forceinline__ void load_listed_rows(const parts::DecodeArguments& args,
                                                 parts::SegmentList& segments, Loader loader) {
  parts::ListPosition position(segments);
  bool looks_ahead = false;
  if (parts::is_in_turn(args)) {
    const parts::Work first = parts::whole_part(args);
    looks_ahead = !first.is_end();
    if (looks_ahead) loader.template look_ahead<true>(args, first);
  }
  for (; !position.get().is_end(); position.next()) {
    if (!looks_ahead) loader.template look_ahead<false>(args, position.get());
    looks_ahead = false;
    loader.load([&] {
      const parts::Work* next = position.next_listed();
      if (next == nullptr || next->is_end()) return;
      loader.template look_ahead<false>(args, *next);
      looks_ahead = true;
    });
  }
}

}  // namespace flashlatent::fp8
