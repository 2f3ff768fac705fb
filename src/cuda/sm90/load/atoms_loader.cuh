// Blocks of tokens to shared memory as they are in the cache: by boxes of pages, or token by token.
#pragma once

#include <type_traits>

#include "cuda/sm90/load/atoms.cuh"
#include "cuda/sm90/load/page_boxes.cuh"
#include "cuda/sm90/load/ring_place.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/listed_tokens.cuh"
#include "cuda/sm90/walk/segment_list.cuh"

namespace flashlatent::sm90::atoms {

/// With a barrier `has_query` in Shared: only a call's first block is loaded before Q has come, since behind
/// more blocks Q would come late (docs/log/fp8.md). Call pass() before the next block's arrival: once that
/// block can be used, the next segment's Q may come, and the barrier be one phase further.
template <class Shared>
class QueryGate {
 public:
  __device__ __forceinline__ void pass(Shared& shared) {
    if constexpr (requires { shared.has_query; }) {
      if (!is_open_) ptx::wait(shared.has_query, 0);
      is_open_ = true;
    }
  }

 private:
  bool is_open_ = false;
};

/// By one warp. A box is all columns of 16, 32 or 64 tokens of a page.
template <class Shared>
class BoxLoader {
  using Config = typename Shared::Config;

 public:
  static constexpr int kThreads = 32, kArrivals = 1;

  __device__ __forceinline__ BoxLoader(const CacheArguments& cache, const CUtensorMap& map, Shared& shared,
                                       int thread)
      : pages_(cache, thread), map_(map), shared_(shared) {}

  __device__ __forceinline__ void look_ahead(const BlockRange& range) { pages_.look_ahead(range); }

  template <class Announce>
  __device__ __forceinline__ void load(const BlockRange& range, Announce announce) {
    pages_.for_each_block(range, announce, [&](const auto& boxes) {
      if (ptx::elect_one()) {
        const int slot = slot_.index();
        ptx::wait(shared_.empty[slot], slot_.parity() ^ 1);
        shared_.live[slot] = boxes.live;
        ptx::expect(shared_.full[slot], boxes.bytes / kRowBytes * Config::kQkDim);
#pragma unroll
        for (int i = 0; i < boxes.kCount; ++i) {
          const PageBox& at = boxes.box[i];
          if (at.entry < 0) continue;
          ptx::copy_box(shared_.blocks[slot] + i * boxes.kTokens * Config::kQkDim, map_, 0, 0, 0,
                        at.token / kAtomRows, at.entry, shared_.full[slot], policy_);
        }
      }
      __syncwarp();
      gate_.pass(shared_);
      if (ptx::elect_one()) ptx::arrive(shared_.full[slot_.index()]);
      slot_.next();
    });
  }

 private:
  PageBoxes pages_;
  const CUtensorMap& map_;
  Shared& shared_;
  RingPlace<Config::kSlots> slot_;
  QueryGate<Shared> gate_;
  const std::uint64_t policy_ = ptx::evict_first_policy();
};

/// By four warps, with cp.async: pages of any size, and indices; from two lists with Config::kLists. Four
/// threads copy 64 bytes of a token at once.
template <class Shared>
class TokenLoader {
  using Config = typename Shared::Config;

 public:
  static constexpr bool kLists = Config::kLists;
  using Range = std::conditional_t<kLists, ListedRange, BlockRange>;
  static constexpr int kThreads = 128, kArrivals = kThreads + 1;

  __device__ __forceinline__ TokenLoader(const CacheArguments& cache, const CUtensorMap&, Shared& shared,
                                         int thread)
      : cache_(cache), shared_(shared), thread_(thread) {}

  __device__ __forceinline__ void look_ahead(const Range& range) {
    look_up(range, range.begin, next_entries_);
  }

  template <class Announce>
  __device__ __forceinline__ void load(const Range& range, Announce announce) {
    int entries[2] = {next_entries_[0], next_entries_[1]};
    announce();
#pragma unroll 1
    for (int block = range.begin; block < range.end; ++block) {
      const std::uint8_t* source[2];
      const std::uint64_t live = locate(range, entries, block, source);
      if (block + 1 < range.end) look_up(range, block + 1, entries);
      copy(live, source);
      slot_.next();
    }
  }

 private:
  /// Entries of a block's tokens, two a lane.
  __device__ __forceinline__ void look_up(const Range& range, int block, int (&entries)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 32 + thread_ % 32;
      if constexpr (kLists) {
        entries[half] = entry_of(cache_, range.lists, place_in_list(range.lists, block, row));
      } else {
        entries[half] = entry_of(cache_, range, block * 64 + row);
      }
    }
  }

  /// Where a token is, or null if it is dead.
  __device__ __forceinline__ const std::uint8_t* address_of(const Range& range, int entry, int block,
                                                            int row) const {
    if constexpr (kLists) {
      return token_of(cache_, range.lists, place_in_list(range.lists, block, row), entry, 0).data;
    } else {
      const TokenPlace place = place_of(cache_, entry, block * 64 + row);
      if (place.page < 0) return nullptr;
      return static_cast<const std::uint8_t*>(cache_.data) + offset_of(cache_, place, 0);
    }
  }

  /// Finds this thread's 16 bytes of the first 64 of its two tokens; returns which of the block's tokens
  /// count.
  __device__ __forceinline__ std::uint64_t locate(const Range& range, const int (&entries)[2], int block,
                                                  const std::uint8_t* (&source)[2]) const {
    std::uint64_t live = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint8_t* token = address_of(range, entries[half], block, half * 32 + thread_ % 32);
      live |= static_cast<std::uint64_t>(__ballot_sync(0xffffffff, token != nullptr)) << (32 * half);
      source[half] = reinterpret_cast<const std::uint8_t*>(
                         __shfl_sync(0xffffffff, reinterpret_cast<std::uint64_t>(token), thread_ / 4)) +
                     thread_ % 4 * 16;
    }
    return live;
  }

  __device__ __forceinline__ void copy(std::uint64_t live, const std::uint8_t* const (&source)[2]) {
    const int slot = slot_.index();
    ptx::wait(shared_.empty[slot], slot_.parity() ^ 1);
    const std::uint32_t to = ptx::shared_address(shared_.blocks[slot]) +
                             block_offset<Config::kChunks>(thread_ / 4, 0, thread_ % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!(live >> (half * 32 + thread_ / 4) & 1)) continue;
#pragma unroll
      for (int chunk = 0; chunk < Config::kChunks; ++chunk) {
        ptx::copy_16_bytes(to + (half * 4 * Config::kChunks + chunk) * kAtomBytes, source[half] + chunk * 64);
      }
    }
    gate_.pass(shared_);
    ptx::copy_arrive(shared_.full[slot]);
    if (thread_ != 0) return;
    shared_.live[slot] = live;
    ptx::arrive(shared_.full[slot]);
  }

  const CacheArguments& cache_;
  Shared& shared_;
  const int thread_;
  RingPlace<Config::kSlots> slot_;
  QueryGate<Shared> gate_;
  int next_entries_[2] = {-1, -1};
};

template <class Shared>
using Loader = std::conditional_t<Shared::Config::kBoxes, BoxLoader<Shared>, TokenLoader<Shared>>;

/// The loading role, for segments that a computing warp lists.
template <class Loader>
__device__ __forceinline__ void load_segments(const DecodeArguments& args, SegmentList& segments,
                                              Loader loader) {
  ListPosition position(segments);
  bool looks_ahead = false;
  for (; !position.get().is_end(); position.next()) {
    const Work& work = position.get();
    const auto range = range_of<Loader>(args, work.segment, work.tile);
    if (!looks_ahead) loader.look_ahead(range);
    looks_ahead = false;
    loader.load(range, [&] {
      const Work* next = position.next_listed();
      if (next == nullptr || next->is_end()) return;
      loader.look_ahead(range_of<Loader>(args, next->segment, next->tile));
      looks_ahead = true;
    });
  }
}

}  // namespace flashlatent::sm90::atoms
