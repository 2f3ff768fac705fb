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

/// By four warps, each 16 tokens of every block: half a warp a block of two. Entries (of the page table, or
/// indices) are asked for four blocks ahead: with one ahead a call's first four blocks were asked for 2 us
/// after one another. Tokens that do not count come as zeros, scales too.
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

  /// Asks for entries as look_ahead() would for this range, which the next one may be but for the number of
  /// tokens: before lengths are known.
  __device__ __forceinline__ void guess(const Range& range) {
    ask_first(range);
    guessed_begin_ = range.begin;
    guessed_blocks_ = range.lists.blocks;
  }
  __device__ __forceinline__ void look_ahead(const Range& range) {
    if (guessed_begin_ == range.begin && guessed_blocks_ == range.lists.blocks && range.lists.first == 0) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (!counts(range, range.begin + 2 * i)) next_entries_[i] = -1;
      }
    } else {
      ask_first(range);
    }
    guessed_begin_ = kNoGuess;
  }

  template <class Announce>
  __device__ __forceinline__ void load(const Range& range, Announce announce) {
    int entries[kPairs] = {next_entries_[0], next_entries_[1]};
    // Once all slots are asked for: who walks on may wait for memory.
    const int last = min(range.begin + Config::kSlots, range.end) - 1;
    if (range.begin == range.end) announce();
#pragma unroll 1
    for (int first = range.begin; first < range.end; first += 2 * kPairs) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int block = first + 2 * i;
        if (block >= range.end) break;
        const Row row = locate(range, entries[i], block);
        // To the same register: a move would wait for it.
        entries[i] = look_up(range, block + 2 * kPairs);
        copy(row, 0);
        gate_.pass(shared_);
        if (block + 1 < range.end) copy(row, 1);
        if (block == last || block + 1 == last) announce();
      }
    }
  }

 private:
  static constexpr int kWarpTokens = 16;
  static constexpr int kPairs = 2;  // of blocks, whose entries are asked for ahead
  static constexpr int kNoGuess = -1;

  /// Of a pair of blocks, which this lane has: 0 or 1.
  __device__ __forceinline__ int half() const {
    return lane_ / kWarpTokens;
  }
  __device__ __forceinline__ int token() const {
    return first_ + lane_ % kWarpTokens;
  }
  /// This lane's token of the pair of blocks that begins at `block`.
  __device__ __forceinline__ parts::ListPlace place(const Range& range, int block) const {
    return parts::place_in_list(range.lists, block + half(), token());
  }
  __device__ __forceinline__ bool counts(const Range& range, int block) const {
    const parts::ListPlace at = place(range, block);
    return block + half() < range.end &&
           at.token < (at.second ? range.lists.tokens[1] : range.lists.tokens[0]);
  }
  __device__ __forceinline__ int look_up(const Range& range, int block) const {
    if (block + half() >= range.end) return -1;
    return parts::entry_of<true>(cache_, range.lists, place(range, block));
  }
  __device__ __forceinline__ void ask_first(const Range& range) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) next_entries_[i] = look_up(range, range.begin + 2 * i);
  }

  struct Row {
    const std::uint8_t* data;
    int scales_offset;
    std::uint32_t live;  // of the warp's tokens of two blocks
  };
  __device__ __forceinline__ Row locate(const Range& range, int entry, int block) const {
    const parts::ListedToken found =
        parts::token_of(cache_, range.lists, place(range, block), entry, /*kv_head=*/0);
    const std::uint32_t live = __ballot_sync(0xffffffff, found.data != nullptr);
    if (found.data == nullptr) {
      return {reinterpret_cast<const std::uint8_t*>(parts::kZeroRow), fp8_584::kDataBytes, live};
    }
    return {found.data, parts::Fp8_584Rows::scales_offset(found.page_size, found.in_page), live};
  }

  /// The first or the second block of a pair.
  __device__ __forceinline__ void copy(const Row& row, int which) {
    const int slot = place_.slot();
    ptx::wait(shared_.empty[slot], place_.parity() ^ 1);
    if (lane_ == 0) {
      reinterpret_cast<std::uint16_t*>(&shared_.live[slot])[first_ / kWarpTokens] =
          static_cast<std::uint16_t>(row.live >> which * kWarpTokens);
      ptx::arrive_expecting(shared_.full[slot], kWarpTokens * fp8_584::kDataBytes);
    }
    __syncwarp();
    if (half() == which) {
      std::uint8_t* block = shared_.blocks[slot];
      ptx::copy_bytes(block + pairs::data_offset(token()), row.data, fp8_584::kDataBytes, shared_.full[slot],
                      policy_);
      ptx::copy_8_bytes(ptx::shared_address(block + pairs::scale_offset(token())),
                        row.data + row.scales_offset);
      ptx::copy_arrive(shared_.full[slot]);
    }
    __syncwarp();
    place_.next();
  }

  const parts::CacheArguments& cache_;
  Shared& shared_;
  const int lane_, first_;
  // Q, page tables, results and instructions stay in L2 instead (loader.cuh).
  const std::uint64_t policy_ = ptx::evict_first_policy();
  RingPlace<Config> place_;
  parts::atoms::QueryGate<Shared> gate_;
  int next_entries_[kPairs] = {-1, -1};
  int guessed_begin_ = kNoGuess, guessed_blocks_ = 0;
};

}  // namespace flashlatent::fp8
