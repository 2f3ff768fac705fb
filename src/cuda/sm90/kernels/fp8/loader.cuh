// Tokens of an fp8_656 cache to shared memory as they are, by bulk copies: 656 bytes a token, or 16 tokens at
// once if they are adjacent. Read by columns of 16 bytes, eight tokens lie in eight groups of banks (656 = 5
// x 128 + 16), so no swizzle is needed.
#pragma once

#include "core/formats/fp8_656.h"
#include "cuda/sm90/kernels/fp8/ring_place.cuh"
#include "cuda/sm90/load/kv_loader.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/segment_list.cuh"

namespace flashlatent::fp8 {

/// The source of dead tokens.
__device__ constexpr uint4 kZeroToken[fp8_656::kTokenBytes / 16] = {};

/// By four warps, each with 16 tokens of every block.
template <class Shared>
class Loader {
  using Config = typename Shared::Config;

 public:
  static constexpr bool kSparesRegisters = true;
  static constexpr int kThreads = 128, kArrivals = kThreads / 32;

  __device__ __forceinline__ Loader(const sm90::CacheArguments& cache, Shared& shared, int thread)
      : cache_(cache), shared_(shared), lane_(thread % 32), first_(thread / 32 * kWarpTokens) {}

  __device__ __forceinline__ void look_ahead(const sm90::BlockRange& range) {
    next_entry_ = look_up(range, range.begin);
  }

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe&, const sm90::BlockRange& range, Announce announce) {
    int entry = next_entry_;
    if (range.begin == range.end) announce();
#pragma unroll 1
    for (int block = range.begin; block < range.end; ++block) {
      const int ahead = block + 1 < range.end ? look_up(range, block + 1) : -1;
      copy(token_of(entry, block));
      if (block == range.begin) announce();
      if (!has_query_) wait_for_query();
      if (lane_ == 0) ptx::arrive(shared_.full[place_.slot()]);
      place_.next();
      entry = ahead;
    }
  }

 private:
  static constexpr int kWarpTokens = 16;
  static constexpr int kWarpBytes = kWarpTokens * fp8_656::kTokenBytes;

  /// Q is loaded after a call's first block, and needed as early: behind three more blocks of all CTAs it
  /// came late, and dense calls of 128 requests took 3 % longer. The wait for Q comes before this warp's
  /// arrival for the next block: once that block can be used, the next segment's Q may come, and the barrier
  /// be one phase further.
  __device__ __forceinline__ void wait_for_query() {
    ptx::wait(shared_.has_query, 0);
    has_query_ = true;
  }

  /// This lane's token of a block; the upper half of the warp has the same tokens as the lower.
  __device__ __forceinline__ int token(int block) const {
    return block * 64 + first_ + lane_ % kWarpTokens;
  }
  __device__ __forceinline__ int look_up(const sm90::BlockRange& range, int block) const {
    return entry_of(cache_, range, token(block));
  }

  /// Null if the token is dead.
  __device__ __forceinline__ const std::uint8_t* token_of(int entry, int block) const {
    const sm90::TokenPlace place = place_of(cache_, entry, token(block));
    if (place.page < 0) return nullptr;
    return static_cast<const std::uint8_t*>(cache_.data) + offset_of(cache_, place, 0);
  }

  /// Goes to the next stage, which is not full before this warp arrives.
  __device__ __forceinline__ void copy(const std::uint8_t* token) const {
    const std::uint32_t live = __ballot_sync(0xffffffff, token != nullptr) & 0xffff;
    if (token == nullptr) token = reinterpret_cast<const std::uint8_t*>(kZeroToken);
    const std::uint8_t* first = reinterpret_cast<const std::uint8_t*>(
        __shfl_sync(0xffffffff, reinterpret_cast<std::uint64_t>(token), 0));
    const bool in_line = __all_sync(0xffffffff, token == first + lane_ % kWarpTokens * fp8_656::kTokenBytes);
    const int slot = place_.slot();
    std::uint8_t* to = shared_.blocks[slot] + first_ * fp8_656::kTokenBytes;
    ptx::wait(shared_.empty[slot], place_.parity() ^ 1);
    if (lane_ == 0) {
      reinterpret_cast<std::uint16_t*>(&shared_.live[slot])[first_ / kWarpTokens] =
          static_cast<std::uint16_t>(live);
      ptx::expect(shared_.full[slot], kWarpBytes);
      if (in_line) ptx::copy_bytes(to, first, kWarpBytes, shared_.full[slot], policy_);
    }
    __syncwarp();
    if (!in_line && lane_ < kWarpTokens) {
      ptx::copy_bytes(to + lane_ * fp8_656::kTokenBytes, token, fp8_656::kTokenBytes, shared_.full[slot],
                      policy_);
    }
  }

  const sm90::CacheArguments& cache_;
  Shared& shared_;
  const int lane_, first_;
  // Q, page tables, results and instructions stay in L2 instead: 4 to 8 % of a call of 128 requests.
  const std::uint64_t policy_ = ptx::evict_first_policy();
  RingPlace<Config> place_;
  int next_entry_ = -1;
  bool has_query_ = false;  // the Q of the first segment with blocks
};

/// The loading role, for listed segments.
template <class Loader>
__device__ __forceinline__ void load_listed(const sm90::DecodeArguments& args, sm90::SegmentList& segments,
                                            Loader loader) {
  sm90::ListPosition position(segments);
  struct NoPipe {
  } pipe;
  bool looks_ahead = false;
  for (; !position.get().is_end(); position.next()) {
    const sm90::Work& work = position.get();
    const sm90::BlockRange range = sm90::block_range(args.cache, work.segment, work.tile);
    if (!looks_ahead) loader.look_ahead(range);
    looks_ahead = false;
    loader.load(pipe, range, [&] {
      const sm90::Work* next = position.next_listed();
      if (next == nullptr || next->is_end()) return;
      loader.look_ahead(sm90::block_range(args.cache, next->segment, next->tile));
      looks_ahead = true;
    });
  }
}

}  // namespace flashlatent::fp8
