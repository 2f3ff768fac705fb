// Tokens of fp8_584 caches, of two lists (parts/listed_tokens.cuh), to shared memory as they are in the
// cache: 576 bytes a token by a bulk copy, its 8 bytes of scales, which are elsewhere in the page, by
// cp.async (token_pairs.cuh). cp.async of all bytes would take four times as long in shared memory, which
// counts its 16 bytes a lane by sectors (docs/kernels/fp8_584.md).
#pragma once

#include "cuda/fp8/ring_place.cuh"
#include "cuda/fp8/token_pairs.cuh"
#include "cuda/parts/atoms_loader.cuh"
#include "cuda/parts/fp8_rows.cuh"
#include "cuda/parts/listed_tokens.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::fp8 {

/// By four warps, each 16 tokens of every block. Tokens that do not count come as zeros, scales too.
template <class Shared>
class Loader584 {
  using Config = typename Shared::Config;
  using Range = parts::ListedRange;

 public:
  static constexpr bool kLists = true;
  static constexpr int kThreads = 128;
  /// A lane of each warp for its bytes, and who has asked for a token's scales.
  static constexpr int kArrivals = kThreads / 32 + 64;

  __device__ __forceinline__ Loader584(const parts::CacheArguments& cache, Shared& shared, int thread)
      : cache_(cache), shared_(shared), lane_(thread % 32), first_(thread / 32 * kWarpTokens) {}

  /// Before lengths are known: asks for what look_ahead() would ask for if the next range begins with tokens
  /// of the item's first list, which go by indices. That is one trip to memory less before a call's first
  /// rows.
  __device__ __forceinline__ void guess(const parts::DecodeArguments& args, const parts::RowTile& tile) {
    const parts::ListedCache& first = cache_.listed[0];
    guesses_ = first.indexed;
    if (!guesses_ || token() >= args.geometry.list[0].reach) return;
    next_entry_ = __ldg(first.entries + tile.request * first.entries_stride +
                        tile.first_token * first.entries_token_stride + token());
  }
  __device__ __forceinline__ void look_ahead(const Range& range) {
    if (guesses_ && range.begin == 0 && range.lists.blocks > 0) {
      if (token() >= range.lists.tokens[0]) next_entry_ = -1;
    } else {
      next_entry_ = look_up(range, range.begin);
    }
    guesses_ = false;
  }

  template <class Announce>
  __device__ __forceinline__ void load(const Range& range, Announce announce) {
    int entry = next_entry_;
    // Once all slots are asked for: who walks on may wait for memory.
    const int last = min(range.begin + Config::kSlots, range.end) - 1;
    if (range.begin == range.end) announce();
#pragma unroll 1
    for (int block = range.begin; block < range.end; ++block) {
      const int ahead = block + 1 < range.end ? look_up(range, block + 1) : -1;
      copy(locate(range, entry, block));
      if (block == last) announce();
      gate_.pass(shared_);
      entry = ahead;
    }
  }

 private:
  static constexpr int kWarpTokens = 16;

  /// The upper half warp has the same as the lower.
  __device__ __forceinline__ int token() const {
    return first_ + lane_ % kWarpTokens;
  }
  __device__ __forceinline__ parts::ListPlace place(const Range& range, int block) const {
    return parts::place_in_list(range.lists, block, token());
  }
  __device__ __forceinline__ int look_up(const Range& range, int block) const {
    return parts::entry_of<true>(cache_, range.lists, place(range, block));
  }

  struct Row {
    const std::uint8_t* data;
    int scales_offset;
    std::uint32_t live;  // of the warp's tokens
  };
  __device__ __forceinline__ Row locate(const Range& range, int entry, int block) const {
    const parts::ListedToken found =
        parts::token_of(cache_, range.lists, place(range, block), entry, /*kv_head=*/0);
    const std::uint32_t live = __ballot_sync(0xffffffff, found.data != nullptr) & 0xffff;
    if (found.data == nullptr) {
      return {reinterpret_cast<const std::uint8_t*>(parts::kZeroRow), fp8_584::kDataBytes, live};
    }
    return {found.data, parts::Fp8_584Rows::scales_offset(found.page_size, found.in_page), live};
  }

  __device__ __forceinline__ void copy(const Row& row) {
    const int slot = place_.slot();
    ptx::wait(shared_.empty[slot], place_.parity() ^ 1);
    if (lane_ == 0) {
      reinterpret_cast<std::uint16_t*>(&shared_.live[slot])[first_ / kWarpTokens] =
          static_cast<std::uint16_t>(row.live);
      ptx::arrive_expecting(shared_.full[slot], kWarpTokens * fp8_584::kDataBytes);
    }
    __syncwarp();
    if (lane_ < kWarpTokens) {
      std::uint8_t* block = shared_.blocks[slot];
      ptx::copy_bytes(block + pairs::data_offset(token()), row.data, fp8_584::kDataBytes, shared_.full[slot],
                      policy_);
      ptx::copy_8_bytes(ptx::shared_address(block + pairs::scale_offset(token())),
                        row.data + row.scales_offset);
      ptx::copy_arrive(shared_.full[slot]);
    }
    place_.next();
  }

  const parts::CacheArguments& cache_;
  Shared& shared_;
  const int lane_, first_;
  // Q, page tables, results and instructions stay in L2 instead (loader.cuh).
  const std::uint64_t policy_ = ptx::evict_first_policy();
  RingPlace<Config> place_;
  parts::atoms::QueryGate<Shared> gate_;
  int next_entry_ = -1;
  bool guesses_ = false;  // next_entry_ is guess()'s
};

}  // namespace flashlatent::fp8
