// KV blocks from pages into tiles of shared memory: the producer's side. Each tile has a barrier that says it
// is full and one that says it may be overwritten, so that memory is refilled tile by tile as last readers
// finish.
//
// Where tiles lie and in which order they are filled is the kernel's matter; it gives a loader a Pipe:
//   Element, kQkChunks          the cache's type; tiles of 64 columns a block
//   begin_range()               before a segment's first block
//   chunk(i)                    which 64 columns the block's i-th tile holds
//   tile(i), full(i)            the tile and its barrier
//   wait_empty(i)               until it may be overwritten
//   live()                      which of the block's tokens count; written before tile 0 is full
//   next_block()
#pragma once

#include <cuda_runtime.h>

#include "cuda/parts/arguments.cuh"
#include "cuda/parts/mask.cuh"
#include "cuda/parts/tile.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::parts {

/// One request's blocks, as a loader sees them.
struct BlockRange {
  const std::int32_t* pages;  // the request's row of the page table
  int length;                 // tokens
  int kv_head;
  int begin, end;  // blocks
};

/// A page of the cache, or -1 where the table's entry names none.
__device__ __forceinline__ int page_of(const CacheArguments& cache, const BlockRange& range, int token) {
  if (token >= range.length) return -1;  // entries past the request's pages are never read
  const int page = __ldg(range.pages + token / cache.page_size);
  const bool valid = page >= 0 && page < cache.pages;
#if FLASHLATENT_DEVICE_CHECKS
  if (!valid) {
    printf("flashlatent: seesaw: token %d of the request at table %p has page %d; pages are 0 to %d\n", token,
           range.pages, page, cache.pages - 1);
  }
#endif
  return valid ? page : -1;
}

/// Whole boxes of a page by TMA; one warp. Pages hold a multiple of `box_tokens` (16, 32 or 64).
struct TmaLoader {
  static constexpr int kThreads = 32;
  static constexpr int kArrivals = 1;  // on a full barrier, beside the bytes

  template <class Pipe>
  __device__ __forceinline__ static void load(Pipe& pipe, const CacheArguments& cache, const CUtensorMap& map,
                                              const BlockRange& range, int lane) {
    switch (cache.box_tokens) {
      case 64:
        return load_boxes<1>(pipe, cache, map, range, lane);
      case 32:
        return load_boxes<2>(pipe, cache, map, range, lane);
      default:
        return load_boxes<4>(pipe, cache, map, range, lane);
    }
  }

 private:
  /// Where a box begins: a page, or -1, and a token in it.
  struct Box {
    int page;
    int token;
  };

  // One thread issues nine tiles a block: a hundred instructions a tile would be the kernel's bottleneck (and
  // were: 6,000 clocks a block), so that all arithmetic on pages is done by the lanes, one box each, a batch
  // ahead of its use.
  template <int kBoxes, class Pipe>
  __device__ __forceinline__ static void load_boxes(Pipe& pipe, const CacheArguments& cache,
                                                    const CUtensorMap& map, const BlockRange& range,
                                                    int lane) {
    constexpr int kBoxTokens = 64 / kBoxes;
    constexpr int kBlocksABatch = 32 / kBoxes;
    auto look_up = [&](int block) -> Box {
      const int token = block * 64 + lane * kBoxTokens;
      return {page_of(cache, range, token), token % cache.page_size};
    };
    pipe.begin_range();
    Box batch = look_up(range.begin), next_batch = {};
    for (int block = range.begin, in_batch = 0; block < range.end; ++block, ++in_batch) {
      if (in_batch == kBlocksABatch) {
        batch = next_batch;
        in_batch = 0;
      }
      if (in_batch == 0) next_batch = look_up(block + kBlocksABatch);
      Box boxes[kBoxes];
      std::uint64_t live = 0;
      std::uint32_t bytes = 0;  // of a tile
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) {
        boxes[i].page = __shfl_sync(0xffffffff, batch.page, in_batch * kBoxes + i);
        boxes[i].token = __shfl_sync(0xffffffff, batch.token, in_batch * kBoxes + i);
        if (boxes[i].page < 0) continue;
        live |= low_tokens(kBoxTokens) << (i * kBoxTokens);
        bytes += kBoxTokens * kRowBytes;
      }
      live &= low_tokens(range.length - block * 64);
      if (ptx::elect_one()) {
#pragma unroll
        for (int i = 0; i < Pipe::kQkChunks; ++i) {
          pipe.wait_empty(i);
          if (i == 0) pipe.live() = live;
          ptx::arrive_expecting(pipe.full(i), bytes);
          std::uint8_t* tile = pipe.tile(i).bytes;
#pragma unroll
          for (int j = 0; j < kBoxes; ++j) {
            if (boxes[j].page < 0) continue;
            ptx::copy_box(tile + j * kBoxTokens * kRowBytes, map, pipe.chunk(i) * 64, boxes[j].token,
                          range.kv_head, boxes[j].page, pipe.full(i));
          }
        }
      }
      pipe.next_block();
      __syncwarp();
    }
  }
};

/// Token by token with cp.async, for pages of any size; four warps. Each thread copies the same 16-byte
/// column of four rows of every tile.
struct TokenLoader {
  static constexpr int kThreads = 128;
  static constexpr int kArrivals = 128;

  template <class Pipe>
  __device__ __forceinline__ static void load(Pipe& pipe, const CacheArguments& cache, const CUtensorMap&,
                                              const BlockRange& range, int thread) {
    using Element = typename Pipe::Element;
    const int unit = thread % 8;
    pipe.begin_range();
    for (int block = range.begin; block < range.end; ++block) {
      std::uint64_t live = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool valid = page_of(cache, range, block * 64 + half * 32 + thread % 32) >= 0;
        live |= static_cast<std::uint64_t>(__ballot_sync(0xffffffff, valid)) << (32 * half);
      }
      const Element* source[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = thread / 8 + 16 * i;
        const int token = block * 64 + row;
        source[i] = nullptr;
        if (!(live >> row & 1)) continue;
        source[i] =
            static_cast<const Element*>(cache.data) + page_of(cache, range, token) * cache.page_stride +
            token % cache.page_size * cache.token_stride + range.kv_head * cache.head_stride + unit * 8;
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
};

}  // namespace flashlatent::parts
