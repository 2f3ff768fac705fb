// Loads token by token with cp.async.
#pragma once

#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/listed_tokens.cuh"

namespace flashlatent::sm90 {

/// For pages of any size; used by four warps. Each thread copies the same 16-byte column of four rows of
/// every tile. No thread waits for copies: they arrive on barriers themselves, and meanwhile the next block's
/// tokens are located. kLists_: tokens are of two lists (listed_tokens.cuh).
template <bool kLists_>
class TokenLoaderOf {
 public:
  static constexpr bool kLists = kLists_;
  using Range = std::conditional_t<kLists, ListedRange, BlockRange>;
  static constexpr int kThreads = 128;
  __device__ __forceinline__ static int threads(const CacheArguments&) { return kThreads; }
  // of the copies, and of the lane that writes which tokens count
  static constexpr int kArrivals = kThreads + 1;
  static constexpr bool kZeroesDead = false;
  static constexpr bool kReaderFences = true;
  static constexpr bool kAllReadersArrive = true;
  static constexpr bool kPairs = false;
  static constexpr bool kWholeBlocks = false;
  static constexpr bool kSparesRegisters = false;
  struct Memory {};

  __device__ __forceinline__ static void prepare(const CUtensorMap&) {}

  __device__ __forceinline__ TokenLoaderOf(const CacheArguments& cache, const CUtensorMap&, int thread,
                                           Memory&)
      : cache_(cache), thread_(thread) {}

  __device__ __forceinline__ void look_ahead(const Range& range) {
    look_up(range, range.begin, next_entries_);
  }

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const Range& range, Announce announce) {
    int entries[2] = {next_entries_[0], next_entries_[1]};
    announce();  // loads the next range's first entries
    pipe.begin_range();
    for (int block = range.begin; block < range.end; ++block) {
      locate<typename Pipe::Element>(entries, range, block);
      if (block + 1 < range.end) look_up(range, block + 1, entries);
      copy_block(pipe);
      pipe.next_block();
    }
  }

 private:
  static constexpr int kRows = 4;  // of a thread
  static constexpr int kApart = kTileRows / kRows;
  __device__ __forceinline__ int first_row() const { return thread_ / 8; }

  /// Loads the entries of a block's tokens, two for each lane.
  __device__ __forceinline__ void look_up(const Range& range, int block, int (&entries)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 32 + thread_ % 32;
      if constexpr (kLists) {
        entries[half] = entry_of<true>(cache_, range.lists, place_in_list(range.lists, block, row));
      } else {
        entries[half] = entry_of(cache_, range, block * 64 + row);
      }
    }
  }

  /// Finds this thread's rows, and which of the block's tokens count.
  template <class Element>
  __device__ __forceinline__ void locate(const int (&entries)[2], const Range& range, int block) {
    live_ = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 32 + thread_ % 32;
      bool counts;
      std::int64_t offset;  // with lists: the address
      if constexpr (kLists) {
        const auto at = place_in_list(range.lists, block, row);
        offset = reinterpret_cast<std::int64_t>(
            token_of(cache_, range.lists, at, entries[half], range.kv_head).data);
        counts = offset != 0;
      } else {
        const TokenPlace place = place_of(cache_, entries[half], block * 64 + row);
        offset = offset_of(cache_, place, range.kv_head);
        counts = place.page >= 0;
      }
      live_ |= static_cast<std::uint64_t>(__ballot_sync(0xffffffff, counts)) << (32 * half);
#pragma unroll
      for (int i = half * kRows / 2; i < (half + 1) * kRows / 2; ++i) {
        const int lane = (first_row() + i * kApart) % 32;
        const std::int64_t from = __shfl_sync(0xffffffff, offset, lane);
        if constexpr (kLists) {
          source_[i] = reinterpret_cast<const std::uint8_t*>(from) + thread_ % 8 * 16;
        } else {
          source_[i] =
              reinterpret_cast<const std::uint8_t*>(static_cast<const Element*>(cache_.data) + from) +
              thread_ % 8 * 16;
        }
      }
    }
  }

  template <class Pipe>
  __device__ __forceinline__ void copy_block(Pipe& pipe) const {
    bool live[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) live[k] = live_ >> (first_row() + k * kApart) & 1;
    const std::uint32_t place = unit_offset(first_row(), thread_ % 8);
    static_assert(kApart % 8 == 0);  // rows this far apart have their units in the same order
#pragma unroll
    for (int i = 0; i < Pipe::kQkChunks; ++i) {
      pipe.wait_empty(i);
      const std::uint32_t to = ptx::shared_address(&pipe.tile(i)) + place;
      const int column_bytes = pipe.chunk(i) * kRowBytes;
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        if (live[k]) ptx::copy_16_bytes(to + k * kApart * kRowBytes, source_[k] + column_bytes);
      }
      ptx::copy_arrive(pipe.full(i));
      if (thread_ != 0) continue;
      if (i == 0) pipe.live() = live_;
      ptx::arrive(pipe.full(i));
    }
  }

  const CacheArguments& cache_;
  const int thread_;
  int next_entries_[2];                // of the next range's first block
  std::uint64_t live_;                 // of this block's tokens
  const std::uint8_t* source_[kRows];  // this thread's 16 bytes of the first chunk of these rows
};

using TokenLoader = TokenLoaderOf<false>;

}  // namespace flashlatent::sm90
