// Token by token with cp.async.
#pragma once

#include <utility>

#include "cuda/parts/kv_tokens.cuh"
#include "cuda/parts/mask.cuh"
#include "cuda/parts/tile.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::parts {

/// Token by token with cp.async, for pages of any size; four warps. Each thread copies the same 16-byte
/// column of four rows of every tile.
class TokenLoader {
 public:
  static constexpr int kThreads = 128;
  __device__ __forceinline__ static int threads(const CacheArguments&) { return kThreads; }
  static constexpr int kArrivals = 128;
  static constexpr bool kZeroesDead = false;
  static constexpr bool kReaderFences = false;
  static constexpr bool kAllReadersArrive = true;
  static constexpr bool kPairs = false;
  static constexpr bool kWholeBlocks = false;
  static constexpr bool kSparesRegisters = false;
  struct Memory {};

  __device__ __forceinline__ static void prepare(const CUtensorMap&) {}

  __device__ __forceinline__ TokenLoader(const CacheArguments& cache, const CUtensorMap&, int thread, Memory&)
      : cache_(cache), thread_(thread) {}

  __device__ __forceinline__ void look_ahead(const BlockRange&) {}

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    using Element = typename Pipe::Element;
    announce();
    const CacheArguments& cache = cache_;
    const int thread = thread_;
    const int unit = thread % 8;
    pipe.begin_range();
    for (int block = range.begin; block < range.end; ++block) {
      std::uint64_t live = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = block * 64 + half * 32 + thread % 32;
        const bool valid = place_of(cache, entry_of(cache, range, token), token).page >= 0;
        live |= static_cast<std::uint64_t>(__ballot_sync(0xffffffff, valid)) << (32 * half);
      }
      const Element* source[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = thread / 8 + 16 * i;
        const int token = block * 64 + row;
        source[i] = nullptr;
        if (!(live >> row & 1)) continue;
        const TokenPlace place = place_of(cache, entry_of(cache, range, token), token);
        source[i] =
            static_cast<const Element*>(cache.data) + offset_of(cache, place, range.kv_head) + unit * 8;
      }
      for (int i = 0; i < Pipe::kQkChunks; ++i) {
        pipe.wait_empty(i);
        if (i == 0 && thread == 0) pipe.live() = live;
        const std::uint32_t tile = ptx::shared_address(&pipe.tile(i));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (source[j] == nullptr) continue;
          ptx::copy_16_bytes(tile + unit_offset(thread / 8 + 16 * j, unit), source[j] + pipe.chunk(i) * 64);
        }
        ptx::copy_commit();
      }
      // In the order of issue, tile by tile: landed, visible to wgmma, full.
      signal(pipe, std::make_integer_sequence<int, Pipe::kQkChunks>());
      pipe.next_block();
    }
  }

 private:
  template <class Pipe, int... kIndex>
  __device__ __forceinline__ static void signal(Pipe& pipe, std::integer_sequence<int, kIndex...>) {
    (signal_one<Pipe::kQkChunks - 1 - kIndex>(pipe.full(kIndex)), ...);
  }
  template <int kPending>
  __device__ __forceinline__ static void signal_one(ptx::Barrier& full) {
    ptx::copy_wait<kPending>();
    ptx::fence_for_async_proxy();
    ptx::arrive(full);
  }

  const CacheArguments& cache_;
  const int thread_;
};

}  // namespace flashlatent::parts
