// The TMA boxes of blocks: a box is cache.box_tokens tokens of one page.
#pragma once

#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/walk/kv_tokens.cuh"

namespace flashlatent::sm90 {

/// Where a box begins: its page table entry, and a token in the page.
struct PageBox {
  int entry;  // in a block's boxes, -1: no page
  int token;
};

template <int kBoxes>
struct BlockBoxes {
  static constexpr int kCount = kBoxes, kTokens = 64 / kBoxes;  // of a box
  PageBox box[kBoxes];
  std::uint64_t live = 0;   // the block's tokens that count
  std::uint32_t bytes = 0;  // bytes for each 64 columns
};

/// The boxes of a range's blocks, one block after another, for a warp. Each lane computes one box of a batch
/// of 32, ahead of its use: when the thread that starts copies computed them, a block took 6,000 clocks.
class PageBoxes {
 public:
  __device__ __forceinline__ PageBoxes(const CacheArguments& cache, int lane) : cache_(cache), lane_(lane) {}

  __device__ __forceinline__ void look_ahead(const BlockRange& range) {
    ahead_ = look_up(range, range.begin);
  }

  /// For the range that look_ahead() announced: `load` gets the BlockBoxes of each block; `announce` is
  /// called once on the way.
  template <class Announce, class Load>
  __device__ __forceinline__ void for_each_block(const BlockRange& range, Announce announce,
                                                 Load load) const {
    switch (cache_.box_tokens) {
      case 64:
        return walk<1>(range, announce, load);
      case 32:
        return walk<2>(range, announce, load);
      default:
        return walk<4>(range, announce, load);
    }
  }

 private:
  /// The range's box number `lane`, counted from the first box of `block`.
  __device__ __forceinline__ PageBox look_up(const BlockRange& range, int block) const {
    const int token = block * 64 + lane_ * cache_.box_tokens;
    return {entry_of(cache_, range, token), cache_.page_size.remainder(token)};
  }

  template <int kBoxes, class Announce, class Load>
  __device__ __forceinline__ void walk(const BlockRange& range, Announce announce, Load load) const {
    constexpr int kBlocksABatch = 32 / kBoxes;
    PageBox batch = ahead_, next_batch = look_up(range, range.begin + kBlocksABatch);
    announce();
    for (int block = range.begin, in_batch = 0; block < range.end; ++block, ++in_batch) {
      if (in_batch == kBlocksABatch) {
        batch = next_batch;
        next_batch = look_up(range, block + kBlocksABatch);
        in_batch = 0;
      }
      BlockBoxes<kBoxes> boxes;
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) {
        boxes.box[i].entry = __shfl_sync(0xffffffff, batch.entry, in_batch * kBoxes + i);
        boxes.box[i].token = __shfl_sync(0xffffffff, batch.token, in_batch * kBoxes + i);
        if (!is_page(cache_, boxes.box[i].entry)) {
          boxes.box[i].entry = -1;
          continue;
        }
        boxes.live |= low_tokens(boxes.kTokens) << (i * boxes.kTokens);
        boxes.bytes += boxes.kTokens * kRowBytes;
      }
      boxes.live &= low_tokens(range.length - block * 64);
      load(boxes);
    }
  }

  const CacheArguments& cache_;
  const int lane_;
  PageBox ahead_ = {};
};

}  // namespace flashlatent::sm90
