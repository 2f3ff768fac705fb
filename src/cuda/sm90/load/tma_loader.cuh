// Loads whole boxes of pages by TMA.
#pragma once

#include "cuda/sm90/load/page_boxes.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::sm90 {

/// Pages hold a multiple of `box_tokens` (16, 32 or 64). Used by one warp; if a tile takes several boxes, by
/// three warps, with every third tile each: a thread cannot start 36 copies of a block in time.
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
  static constexpr bool kAllReadersArrive = false;
  static constexpr bool kPairs = false;
  static constexpr bool kWholeBlocks = false;
  static constexpr bool kSparesRegisters = false;
  struct Memory {};

  __device__ __forceinline__ static void prepare(const CUtensorMap& map) { ptx::prefetch_map(map); }

  __device__ __forceinline__ TmaLoader(const CacheArguments& cache, const CUtensorMap& map, int thread,
                                       Memory&)
      : pages_(cache, thread % 32), map_(map), warp_(thread / 32) {}

  __device__ __forceinline__ void look_ahead(const BlockRange& range) { pages_.look_ahead(range); }

  /// Loads the range that look_ahead() announced; calls `announce` once meanwhile, for the next range.
  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    pipe.begin_range();
    pages_.for_each_block(range, announce, [&](const auto& boxes) {
      if (ptx::elect_one()) {
#pragma unroll
        for (int i = 0; i < Pipe::kQkChunks; ++i) {
          if (boxes.kCount > 1 && i % kWarps != warp_) continue;
          pipe.wait_empty(i);
          if (i == 0) pipe.live() = boxes.live;
          ptx::arrive_expecting(pipe.full(i), boxes.bytes);
          std::uint8_t* tile = pipe.tile(i).bytes;
#pragma unroll
          for (int j = 0; j < boxes.kCount; ++j) {
            const PageBox& at = boxes.box[j];
            if (at.entry < 0) continue;
            std::uint8_t* box = tile + j * boxes.kTokens * kRowBytes;
            ptx::copy_box(box, map_, pipe.chunk(i) * 64, at.token, range.kv_head, at.entry, pipe.full(i),
                          policy_);
          }
        }
      }
      pipe.next_block();
      __syncwarp();
    });
  }

 private:
  PageBoxes pages_;
  const CUtensorMap& map_;
  const int warp_;
  // KV is read once, so it is evicted first: L2 keeps Q, partial results, and the other tile's half of a
  // block.
  const std::uint64_t policy_ = ptx::evict_first_policy();
};

}  // namespace flashlatent::sm90
