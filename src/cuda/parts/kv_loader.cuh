// KV blocks from pages into tiles of shared memory: the producer's side. Each tile has a barrier that says it
// is full and one that says it may be overwritten, so that memory is refilled tile by tile as last readers
// finish.
//
// Where tiles lie and in which order they are filled is the kernel's matter; it gives a loader a Pipe:
//   Element, kQkChunks          the cache's type; tiles of 64 columns a block
//   begin_range()               before a segment's first block
//   chunk(i)                    which 64 columns the block's i-th tile holds
//   tile(i), full(i)            the tile and its barrier
//   wait_empty(i)               until it may be announced and, if mine(i), overwritten
//   kCluster, mine(i)           CTAs that share blocks; whether this one loads the tile, for all of them
//   live()                      which of the block's tokens count; written before tile 0 is full
//   next_block()
#pragma once

#include <cuda_runtime.h>

#include "cuda/parts/arguments.cuh"
#include "cuda/parts/mask.cuh"
#include "cuda/parts/segments.cuh"
#include "cuda/parts/tile.cuh"
#include "cuda/parts/work_queue.cuh"
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

__device__ __forceinline__ BlockRange block_range(const CacheArguments& cache,
                                                  const schedule::Segment& segment, const RowTile& tile) {
  return {cache.block_table + segment.request * cache.table_stride, segment.length, tile.kv_head,
          segment.block_begin, segment.block_end};
}

/// The page table's entry for a token, or -1 past the end: those entries are never read.
__device__ __forceinline__ int entry_of(const CacheArguments& cache, const BlockRange& range, int token) {
  return token < range.length ? __ldg(range.pages + token / cache.page_size) : -1;
}

/// Does an entry name a page of the cache?
__device__ __forceinline__ bool is_page(const CacheArguments& cache, int entry) {
#if FLASHLATENT_DEVICE_CHECKS
  if (entry >= cache.pages || entry < -1) {
    printf("flashlatent: block %d: the page table names page %d; pages are 0 to %d\n", blockIdx.x, entry,
           cache.pages - 1);
  }
#endif
  return entry >= 0 && entry < cache.pages;
}

/// Whole boxes of a page by TMA; one warp. Pages hold a multiple of `box_tokens` (16, 32 or 64).
class TmaLoader {
 public:
  static constexpr int kThreads = 32;
  static constexpr int kArrivals = 1;  // on a full barrier, beside the bytes

  __device__ __forceinline__ TmaLoader(const CacheArguments& cache, const CUtensorMap& map, int lane)
      : cache_(cache), map_(map), lane_(lane) {}

  /// Asks for the first page table entries of the range that comes next, and does not wait for them.
  __device__ __forceinline__ void look_ahead(const BlockRange& range) {
    ahead_ = look_up(range, range.begin);
  }

  /// Loads the range that look_ahead() announced; `announce` is called once on the way, for the one after.
  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    switch (cache_.box_tokens) {
      case 64:
        return load_boxes<1>(pipe, range, announce);
      case 32:
        return load_boxes<2>(pipe, range, announce);
      default:
        return load_boxes<4>(pipe, range, announce);
    }
  }

 private:
  /// Where a box begins: its page table entry, and a token in the page.
  struct Box {
    int entry;
    int token;
  };

  // One thread issues nine tiles a block: a hundred instructions a tile would be the kernel's bottleneck (and
  // were: 6,000 clocks a block), so that all arithmetic on pages is done by the lanes, one box each, a batch
  // ahead of its use.
  __device__ __forceinline__ Box look_up(const BlockRange& range, int block) const {
    const int token = block * 64 + lane_ * cache_.box_tokens;
    return {entry_of(cache_, range, token), token % cache_.page_size};
  }

  template <int kBoxes, class Pipe, class Announce>
  __device__ __forceinline__ void load_boxes(Pipe& pipe, const BlockRange& range, Announce announce) {
    constexpr int kBoxTokens = 64 / kBoxes;
    constexpr int kBlocksABatch = 32 / kBoxes;
    pipe.begin_range();
    Box batch = ahead_, next_batch = look_up(range, range.begin + kBlocksABatch);
    announce();
    for (int block = range.begin, in_batch = 0; block < range.end; ++block, ++in_batch) {
      if (in_batch == kBlocksABatch) {
        batch = next_batch;
        next_batch = look_up(range, block + kBlocksABatch);
        in_batch = 0;
      }
      Box boxes[kBoxes];
      std::uint64_t live = 0;
      std::uint32_t bytes = 0;  // of a tile
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) {
        boxes[i].entry = __shfl_sync(0xffffffff, batch.entry, in_batch * kBoxes + i);
        boxes[i].token = __shfl_sync(0xffffffff, batch.token, in_batch * kBoxes + i);
        if (!is_page(cache_, boxes[i].entry)) {
          boxes[i].entry = -1;
          continue;
        }
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
          if (!pipe.mine(i)) continue;
          std::uint8_t* tile = pipe.tile(i).bytes;
#pragma unroll
          for (int j = 0; j < kBoxes; ++j) {
            if (boxes[j].entry < 0) continue;
            std::uint8_t* box = tile + j * kBoxTokens * kRowBytes;
            if constexpr (Pipe::kCluster > 1) {
              ptx::copy_box_to((1 << Pipe::kCluster) - 1, box, map_, pipe.chunk(i) * 64, boxes[j].token,
                               range.kv_head, boxes[j].entry, pipe.full(i), policy_);
            } else {
              ptx::copy_box(box, map_, pipe.chunk(i) * 64, boxes[j].token, range.kv_head, boxes[j].entry,
                            pipe.full(i), policy_);
            }
          }
        }
      }
      pipe.next_block();
      __syncwarp();
    }
  }

  const CacheArguments& cache_;
  const CUtensorMap& map_;
  const int lane_;
  // KV is read once; what stays in L2 instead is Q, partial results and the other tile's half of a block.
  const std::uint64_t policy_ = ptx::evict_first_policy();
  Box ahead_ = {};
};

/// Token by token with cp.async, for pages of any size; four warps. Each thread copies the same 16-byte
/// column of four rows of every tile.
class TokenLoader {
 public:
  static constexpr int kThreads = 128;
  static constexpr int kArrivals = 128;

  __device__ __forceinline__ TokenLoader(const CacheArguments& cache, const CUtensorMap&, int thread)
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
        const bool valid = is_page(cache, entry_of(cache, range, block * 64 + half * 32 + thread % 32));
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
            static_cast<const Element*>(cache.data) + entry_of(cache, range, token) * cache.page_stride +
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

  const CacheArguments& cache_;
  const int thread_;
};

/// The loading role: this CTA's segments, one after another, into `pipe`. `set_up` returns when the pipe's
/// barriers are ready; the plan is read meanwhile. `tell` gets each segment before its blocks.
template <class Loader, class Pipe, class SetUp, class Tell>
__device__ __forceinline__ void load_segments(const DecodeArguments& args, Loader loader, Pipe pipe,
                                              SetUp set_up, Tell tell) {
  Segments segments(args);
  schedule::Segment segment, next;
  bool more = segments.next(segment);
  if (more) loader.look_ahead(block_range(args.cache, segment, segments.tile_of(segment)));
  set_up();
  for (; more; segment = next) {
    tell(Work{segment, segments.tile_of(segment)});
    loader.load(pipe, block_range(args.cache, segment, segments.tile_of(segment)), [&] {
      more = segments.next(next);
      if (more) loader.look_ahead(block_range(args.cache, next, segments.tile_of(next)));
    });
  }
}

}  // namespace flashlatent::parts
