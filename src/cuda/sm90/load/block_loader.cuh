// Loads whole blocks by TMA: one copy has all columns of a block, or of a page if pages are shorter.
#pragma once

#include "cuda/sm90/load/page_boxes.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::sm90 {

/// Used by one warp. Pages hold a multiple of 16 tokens; boxes are kv_block_map()'s and lie in shared memory
/// as block_row_offset() says. Few copies of many bytes are what memory serves best (docs/log/mla_16.md, "The
/// loop of mla_16 is fragile"), but scores cannot begin with the first tile.
///
/// The Pipe has the block's two barriers, full(0) and the one that wait_empty(0) waits for, and
///   block()                     the address of the block
class BlockLoader {
 public:
  static constexpr int kThreads = 32;
  __device__ __forceinline__ static int threads(const CacheArguments&) { return kThreads; }
  static constexpr int kArrivals = 1;
  static constexpr bool kReaderFences = false;
  static constexpr bool kAllReadersArrive = false;
  static constexpr bool kPairs = false;
  static constexpr bool kSparesRegisters = false;
  static constexpr bool kWholeBlocks = true;
  struct Memory {};

  __device__ __forceinline__ static void prepare(const CUtensorMap& map) { ptx::prefetch_map(map); }

  __device__ __forceinline__ BlockLoader(const CacheArguments& cache, const CUtensorMap& map, int lane,
                                         Memory&)
      : pages_(cache, lane), map_(map), chunks_a_head_(static_cast<int>(cache.head_stride / 64)) {}

  __device__ __forceinline__ void look_ahead(const BlockRange& range) { pages_.look_ahead(range); }

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    const int chunk = range.kv_head * chunks_a_head_;
    pages_.for_each_block(range, announce, [&](const auto& boxes) {
      if (ptx::elect_one()) {
        pipe.wait_empty(0);
        pipe.live() = boxes.live;
        ptx::arrive_expecting(pipe.full(0), boxes.bytes * Pipe::kQkChunks);
#pragma unroll
        for (int i = 0; i < boxes.kCount; ++i) {
          if (boxes.box[i].entry < 0) continue;
          ptx::copy_box(pipe.block() + block_row_offset<Pipe::kQkChunks>(0, i * boxes.kTokens), map_, 0, 0,
                        chunk, boxes.box[i].token / 16, boxes.box[i].entry, pipe.full(0), policy_);
        }
      }
      pipe.next_block();
      __syncwarp();
    });
  }

 private:
  PageBoxes pages_;
  const CUtensorMap& map_;
  const int chunks_a_head_;
  const std::uint64_t policy_ = ptx::evict_first_policy();  // see TmaLoader
};

}  // namespace flashlatent::sm90
