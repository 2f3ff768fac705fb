// Tokens of two lists (walk/listed_tokens.cuh) to shared memory as they are in the cache. Which copies bring
// a format's tokens, and where to, is another class: Copies584 and CopiesOfRecords (record_copies.cuh).
#pragma once

#include "core/formats/fp8_584.h"
#include "cuda/sm90/kernels/fp8/ring_place.cuh"
#include "cuda/sm90/kernels/fp8/token_pairs.cuh"
#include "cuda/sm90/load/fp8_rows.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/listed_tokens.cuh"

namespace flashlatent::fp8 {

/// A warp has so many tokens of every block, and addresses are found for two blocks together.
inline constexpr int kWarpTokens = 16;

/// The source of dead tokens: zeros, and scales of 1.
struct alignas(16) DeadToken {
  std::uint8_t data[fp8_584::kDataBytes];
  std::uint8_t scales[fp8_584::kScaleBytes];
};
__device__ constexpr DeadToken kDeadToken = {{}, {127, 127, 127, 127, 127, 127, 127, 0}};

/// fp8_584: 576 bytes a token by a bulk copy, its 8 bytes of scales, which are elsewhere in the page, by
/// cp.async (token_pairs.cuh). cp.async of all bytes would take four times as long in shared memory, which
/// counts its 16 bytes a lane by sectors (docs/kernels/fp8_584.md).
template <class Shared>
class Copies584 {
  using Config = typename Shared::Config;

 public:
  /// One lane of each warp announces the bytes of rows; each token's scales arrive by themselves.
  static constexpr int kArrivals = 4 + 64;

  struct Row {
    const std::uint8_t* data;
    int scales_offset;
    std::uint32_t live;  // of the warp's tokens of both blocks
  };
  /// This lane's token.
  __device__ __forceinline__ Row locate(Shared&, const sm90::CacheArguments& cache,
                                        const sm90::ListRange& lists, sm90::ListPlace place,
                                        int entry) const {
    const sm90::ListedToken found = sm90::token_of(cache, lists, place, entry, /*kv_head=*/0);
    const std::uint32_t live = __ballot_sync(0xffffffff, found.data != nullptr);
    if (found.data == nullptr) {
      return {reinterpret_cast<const std::uint8_t*>(&kDeadToken), fp8_584::kDataBytes, live};
    }
    return {found.data, sm90::Fp8_584Rows::scales_offset(found.page_size, found.in_page), live};
  }

  /// The first or the second block of a pair, to the next stage. `token`: the lane's, in its block.
  __device__ __forceinline__ void copy(Shared& shared, const Row& row, int thread, int token, int which) {
    const int slot = place_.slot();
    ptx::wait(shared.empty[slot], place_.parity() ^ 1);
    ptx::Barrier& full = shared.full[slot];
    if (thread % 32 == 0) {
      reinterpret_cast<std::uint16_t*>(&shared.live[slot])[thread / 32] =
          static_cast<std::uint16_t>(row.live >> which * kWarpTokens);
      ptx::arrive_expecting(full, kWarpTokens * fp8_584::kDataBytes);
    }
    __syncwarp();
    if (thread % 32 / kWarpTokens == which) {
      std::uint8_t* block = shared.blocks[slot];
      ptx::copy_bytes(block + pairs::data_offset(token), row.data, fp8_584::kDataBytes, full, policy_);
      ptx::copy_8_bytes(ptx::shared_address(block + pairs::scale_offset(token)),
                        row.data + row.scales_offset);
      ptx::copy_arrive(full);
    }
    __syncwarp();
    place_.next();
  }

 private:
  // Q, page tables, results and instructions stay in L2 instead (box_loader.cuh).
  const std::uint64_t policy_ = ptx::evict_first_policy();
  RingPlace<Config> place_;
};

/// By four warps, each with kWarpTokens tokens of every block. Addresses are found for two blocks together,
/// each by half a warp. Entries (of the page table, or indices) are loaded four blocks ahead: with one block
/// ahead the loads of a call's first four blocks began 2 us after one another. kInRegisters: ranges are in
/// registers, else in shared memory. kBlocksAhead: blocks that may be loaded before any is read; then the
/// next range is sought. 0: it is sought in the middle of a range, when blocks are loaded far enough ahead; <
/// 0: at its end.
template <class Shared, bool kInRegisters, class Copies, int kBlocksAhead = Shared::Config::kSlots>
class ListedRowLoader {
  using Range = sm90::ListedRange;

 public:
  static constexpr int kThreads = 128;
  static constexpr int kArrivals = Copies::kArrivals;  // at a stage's barrier

  __device__ __forceinline__ ListedRowLoader(const sm90::CacheArguments& cache, Shared& shared, int thread)
      : cache_(cache), shared_(shared), thread_(thread) {}

  /// Starts loading the first entries of the next range.
  __device__ __forceinline__ void look_ahead(const Range& range) {
    entry_ = look_up(range, range.begin);
    entry_ahead_ = look_up(range, range.begin + 2);
  }

  /// Loads a range that look_ahead() got; calls `announce` once meanwhile, for the next one.
  template <class Announce>
  __device__ __forceinline__ void load(const Range& range, Announce announce) {
    int entry = entry_, ahead = entry_ahead_;
    // Once the loads of all stages have begun: walking on may wait for memory.
    const int last = kBlocksAhead > 0    ? min(range.begin + kBlocksAhead, range.end) - 1
                     : kBlocksAhead == 0 ? range.begin + (range.end - range.begin) / 2
                                         : range.end - 1;
    if (range.begin == range.end) announce();
#pragma unroll 1
    for (int block = range.begin; block < range.end; block += 2) {
      const typename Copies::Row row =
          copies_.locate(shared_, cache_, range.lists, place(range, block), entry);
      entry = ahead;
      ahead = look_up(range, block + 4);
      if constexpr (kLoops) {
#pragma unroll 1
        for (int which = 0; which < min(range.end - block, 2); ++which) {
          copies_.copy(shared_, row, thread_, token(), which);
          if (!has_query_) wait_for_query();
        }
      } else {
        copies_.copy(shared_, row, thread_, token(), 0);
        if (!has_query_) wait_for_query();
        if (block + 1 < range.end) copies_.copy(shared_, row, thread_, token(), 1);
      }
      if (block == last || block + 1 == last) announce();
    }
  }

 protected:
  /// Which block of a pair this lane has, and which of its tokens.
  __device__ __forceinline__ int half() const {
    return thread_ % 32 / kWarpTokens;
  }
  __device__ __forceinline__ int token() const {
    return thread_ / 32 * kWarpTokens + thread_ % kWarpTokens;
  }
  /// This thread's token of the pair of blocks that begins at `block`.
  __device__ __forceinline__ sm90::ListPlace place(const Range& range, int block) const {
    return sm90::place_in_list(range.lists, block + half(), token());
  }
  __device__ __forceinline__ int look_up(const Range& range, int block) const {
    if (block + half() >= range.end) return -1;
    return sm90::entry_of<kInRegisters>(cache_, range.lists, place(range, block));
  }

  const sm90::CacheArguments& cache_;
  Shared& shared_;
  const int thread_;
  int entry_ = -1, entry_ahead_ = -1;  // of the next range's first four blocks

 private:
  /// Are copies of both blocks one place in the code?
  static constexpr bool kLoops = requires {
    requires Copies::kLoops;
  };

  /// Q is loaded after a call's first block, and needed as early (box_loader.cuh).
  __device__ __forceinline__ void wait_for_query() {
    ptx::wait(shared_.first_query(), 0);
    has_query_ = true;
  }

  Copies copies_;
  bool has_query_ = false;  // of the first range with blocks
};

}  // namespace flashlatent::fp8
