// Whole boxes of a page by TMA.
#pragma once

#include "cuda/parts/kv_tokens.cuh"
#include "cuda/parts/mask.cuh"
#include "cuda/parts/tile.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::parts {

/// Whole boxes of a page by TMA. Pages hold a multiple of `box_tokens` (16, 32 or 64). One warp, or where a
/// tile takes several boxes three, with every third tile each: 36 copies a block are more than one thread
/// asks for in time.
class TmaLoader {
  static constexpr int kWarps = 3;

 public:
  static constexpr int kThreads = 32 * kWarps;
  __device__ __forceinline__ static int threads(const CacheArguments& cache) {
    return cache.box_tokens == 64 ? 32 : kThreads;
  }
  static constexpr int kArrivals = 1;
  static constexpr bool kZeroesDead = false;
  static constexpr bool kReaderFences = false;
  static constexpr bool kSharesTiles = false;
  static constexpr bool kPairs = false;
  static constexpr bool kWholeBlocks = false;
  static constexpr bool kSparesRegisters = false;
  struct Memory {};

  __device__ __forceinline__ static void prepare(const CUtensorMap& map) { ptx::prefetch_map(map); }

  __device__ __forceinline__ TmaLoader(const CacheArguments& cache, const CUtensorMap& map, int thread,
                                       Memory&)
      : cache_(cache), map_(map), lane_(thread % 32), warp_(thread / 32) {}

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
  // One thread issues nine tiles a block: a hundred instructions a tile would be the kernel's bottleneck, so
  // that places are looked up by the lanes, a batch ahead of their use.
  __device__ __forceinline__ PageBox look_up(const BlockRange& range, int block) const {
    return look_up_box(cache_, range, block, lane_);
  }

  template <int kBoxes, class Pipe, class Announce>
  __device__ __forceinline__ void load_boxes(Pipe& pipe, const BlockRange& range, Announce announce) {
    constexpr int kBoxTokens = 64 / kBoxes;
    constexpr int kBlocksABatch = 32 / kBoxes;
    pipe.begin_range();
    PageBox batch = ahead_, next_batch = look_up(range, range.begin + kBlocksABatch);
    announce();
    for (int block = range.begin, in_batch = 0; block < range.end; ++block, ++in_batch) {
      if (in_batch == kBlocksABatch) {
        batch = next_batch;
        next_batch = look_up(range, block + kBlocksABatch);
        in_batch = 0;
      }
      PageBox boxes[kBoxes];
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
          if (kBoxes > 1 && i % kWarps != warp_) continue;
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
  const int lane_, warp_;
  // KV is read once; what stays in L2 instead is Q, partial results and the other tile's half of a block.
  const std::uint64_t policy_ = ptx::evict_first_policy();
  PageBox ahead_ = {};
};

}  // namespace flashlatent::parts
