// Whole blocks by TMA: one copy for all of a block's columns, or one for each page where pages are shorter.
#pragma once

#include "cuda/parts/kv_tokens.cuh"
#include "cuda/parts/mask.cuh"
#include "cuda/parts/tile.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::parts {

/// By one warp; pages hold a multiple of 16 tokens, and kv_block_map() has their boxes, which lie in shared
/// memory as block_row_offset() says. Few copies of many bytes are what memory serves best (docs/kernels/
/// mma16.md, "A block by one copy"), but scores cannot begin with the first tile.
/// Its Pipe has the block's two barriers, full(0) and what wait_empty(0) waits for, and
///   block()                     where it goes
class BlockLoader {
 public:
  static constexpr int kThreads = 32;
  __device__ __forceinline__ static int threads(const CacheArguments&) { return kThreads; }
  static constexpr int kArrivals = 1;
  static constexpr bool kReaderFences = false;
  static constexpr bool kPairs = false;
  static constexpr bool kSparesRegisters = false;
  static constexpr bool kWholeBlocks = true;
  struct Memory {};

  __device__ __forceinline__ static void prepare(const CUtensorMap& map) { ptx::prefetch_map(map); }

  __device__ __forceinline__ BlockLoader(const CacheArguments& cache, const CUtensorMap& map, int lane,
                                         Memory&)
      : cache_(cache), map_(map), lane_(lane) {}

  __device__ __forceinline__ void look_ahead(const BlockRange& range) {
    ahead_ = look_up_box(cache_, range, range.begin, lane_);
  }

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
  template <int kBoxes, class Pipe, class Announce>
  __device__ __forceinline__ void load_boxes(Pipe& pipe, const BlockRange& range, Announce announce) {
    constexpr int kBoxTokens = 64 / kBoxes, kBlocksABatch = 32 / kBoxes;
    const int chunk = range.kv_head * static_cast<int>(cache_.head_stride / 64);
    PageBox batch = ahead_, next_batch = look_up_box(cache_, range, range.begin + kBlocksABatch, lane_);
    announce();
    for (int block = range.begin, in_batch = 0; block < range.end; ++block, ++in_batch) {
      if (in_batch == kBlocksABatch) {
        batch = next_batch;
        next_batch = look_up_box(cache_, range, block + kBlocksABatch, lane_);
        in_batch = 0;
      }
      PageBox boxes[kBoxes];
      std::uint64_t live = 0;
      std::uint32_t bytes = 0;
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) {
        boxes[i].entry = __shfl_sync(0xffffffff, batch.entry, in_batch * kBoxes + i);
        boxes[i].token = __shfl_sync(0xffffffff, batch.token, in_batch * kBoxes + i);
        if (!is_page(cache_, boxes[i].entry)) {
          boxes[i].entry = -1;
          continue;
        }
        live |= low_tokens(kBoxTokens) << (i * kBoxTokens);
        bytes += Pipe::kQkChunks * kBoxTokens * kRowBytes;
      }
      live &= low_tokens(range.length - block * 64);
      if (ptx::elect_one()) {
        pipe.wait_empty(0);
        pipe.live() = live;
        ptx::arrive_expecting(pipe.full(0), bytes);
#pragma unroll
        for (int i = 0; i < kBoxes; ++i) {
          if (boxes[i].entry < 0) continue;
          ptx::copy_box(pipe.block() + block_row_offset<Pipe::kQkChunks>(0, i * kBoxTokens), map_, 0, 0,
                        chunk, boxes[i].token / 16, boxes[i].entry, pipe.full(0), policy_);
        }
      }
      pipe.next_block();
      __syncwarp();
    }
  }

  const CacheArguments& cache_;
  const CUtensorMap& map_;
  const int lane_;
  const std::uint64_t policy_ = ptx::evict_first_policy();  // as TmaLoader's
  PageBox ahead_ = {};
};

}  // namespace flashlatent::parts
