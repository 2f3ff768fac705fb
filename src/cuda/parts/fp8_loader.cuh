// Tokens of an fp8_656 cache, dequantised to bf16 on their way into tiles: through registers, 16 bytes a
// lane.
//
// A block comes in five units: the RoPE part, a tile as it is, then four groups of 128 elements, two tiles
// each. Eight lanes (an octet) read a token's 128 bytes of a unit. A step is a unit of two tokens an octet.
// Five steps are under way while one is converted, into the next block and segment: 20 KB with 128 threads.
//
// A value costs 3 instructions (docs/kernels/sparse_fp8.md): e4m3 to fp16 by pairs, fp16 to fp32, times the
// scale, fp32 to bf16 by pairs. Any fp32 scale is right so, and NaN stays NaN.
#pragma once

#include <cuda_fp8.h>

#include <utility>

#include "core/fp8_656.h"
#include "cuda/parts/kv_tokens.cuh"
#include "cuda/parts/softmax.cuh"
#include "cuda/parts/tile.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::parts {

/// Two e4m3 times `scale` as two bf16.
__device__ __forceinline__ std::uint32_t dequantize_pair(std::uint16_t pair, float scale) {
  const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  return pack<__nv_bfloat16>(values.x * scale, values.y * scale);
}

/// Eight of them.
__device__ __forceinline__ uint4 dequantize(uint2 values, float scale) {
  auto low = [](std::uint32_t x) { return static_cast<std::uint16_t>(x); };
  auto high = [](std::uint32_t x) { return static_cast<std::uint16_t>(x >> 16); };
  return make_uint4(dequantize_pair(low(values.x), scale), dequantize_pair(high(values.x), scale),
                    dequantize_pair(low(values.y), scale), dequantize_pair(high(values.y), scale));
}

/// kWarps load. kCluster = 2: CTAs that hold two tiles of query rows of the same tokens each convert half of
/// a block, and copy it to the other ("crossover"). kAlternates: every other block of a range begins with the
/// second half of its columns, as the pipe does.
template <int kWarps, int kCluster, bool kAlternates>
class Fp8Loader {
 public:
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kArrivals = kCluster == 1 ? kWarps : 1;
  static constexpr bool kZeroesDead = true;
  static constexpr bool kSharesTiles = true;

  __device__ __forceinline__ Fp8Loader(const CacheArguments& cache, const CUtensorMap&, int thread)
      : cache_(cache),
        thread_(thread),
        first_row_((kCluster == 1 ? 0 : ptx::rank_in_cluster() * kOwnRows) + thread / 8) {}

  __device__ __forceinline__ void look_ahead(const BlockRange& range) {
    next_ = range;
    has_next_ = range.begin < range.end;
    has_next_entries_ = false;
  }

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    has_next_ = false;
    announce();
    pipe.begin_range();
    if (!under_way_ && range.begin < range.end) {
      entries_ = look_up(range, range.begin);
      enter_block(range, range.begin);
      request_steps(0, std::make_integer_sequence<int, kDepth>());
    }
    under_way_ = false;
#pragma unroll 1
    for (int block = range.begin; block < range.end; ++block) {
      convert_block(pipe, range, block, std::make_integer_sequence<int, kSteps>());
      pipe.next_block();
    }
  }

 private:
  static constexpr int kUnits = 1 + fp8_656::kGroups;
  static constexpr int kOwnRows = kTileRows / kCluster;
  static constexpr int kRowStep = kThreads / 8;
  static constexpr int kRows = kOwnRows / kRowStep;  // of a thread
  static constexpr int kPasses = kRows / 2;          // steps of a unit
  static constexpr int kSteps = kUnits * kPasses;    // of a block
  static constexpr int kDepth = kUnits;
  static constexpr int kLoaderBarrier = 3;  // named
  static_assert(kRows % 2 == 0 && kSteps % kDepth == 0);

  /// This thread's share of a step, as it is in the cache.
  struct Step {
    uint4 bytes[2];
    float scale;  // of row lane % 2
  };
  /// The entries of a lane's two tokens of a block.
  struct Entries {
    int first, second;
  };

  __device__ __forceinline__ Entries look_up(const BlockRange& range, int block) const {
    const int token = block * 64 + thread_ % 32;
    return {entry_of(cache_, range, token), entry_of(cache_, range, token + 32)};
  }

  __device__ __forceinline__ void look_up_next() {
    if (!has_next_) return;
    entries_ = look_up(next_, next_.begin);
    has_next_entries_ = true;
  }

  /// Where the block's tokens are, and which count; its entries_ are there. Asks for the entries of the next.
  __device__ __forceinline__ void enter_block(const BlockRange& range, int block) {
    const int token = block * 64 + thread_ % 32;
    const TokenPlace first = place_of(cache_, entries_.first, token);
    const TokenPlace second = place_of(cache_, entries_.second, token + 32);
    if (block + 1 < range.end) {
      entries_ = look_up(range, block + 1);
    } else {
      look_up_next();
    }
    live_ = __ballot_sync(0xffffffff, first.page >= 0) |
            static_cast<std::uint64_t>(__ballot_sync(0xffffffff, second.page >= 0)) << 32;
    const auto* cache = static_cast<const std::uint8_t*>(cache_.data);
    const std::int64_t first_offset = offset_of(cache_, first, 0),
                       second_offset = offset_of(cache_, second, 0);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = row_of(i);
      // A warp's rows are all in the first 32 tokens, or all in the second.
      const std::int64_t offset = __shfl_sync(0xffffffff, row < 32 ? first_offset : second_offset, row % 32);
      rows_[i] = live_ >> row & 1 ? cache + offset + thread_ % 8 * 16 : nullptr;
    }
  }

  __device__ __forceinline__ int row_of(int i) const {
    return first_row_ + i * kRowStep;
  }

  template <int... kStep>
  __device__ __forceinline__ void request_steps(int turn, std::integer_sequence<int, kStep...>) {
    (request<kStep>(turn), ...);
  }

  /// Asks for a step of the block entered last, the turn-th of its range.
  template <int kStep>
  __device__ __forceinline__ void request(int turn) {
    constexpr int kUnit = kStep / kPasses, kRow = kStep % kPasses * 2;
    Step& step = steps_[kStep % kDepth];
    const int shift = kAlternates && turn % 2 != 0 ? fp8_656::kGroups / 2 : 0;
    const int group = (kUnit - 1 + shift) % fp8_656::kGroups;
    const int offset = kUnit == 0 ? fp8_656::kRopeOffset : group * fp8_656::kGroup;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      step.bytes[i] = make_uint4(0, 0, 0, 0);
      const std::uint8_t* row = rows_[kRow + i];
      if (row != nullptr) step.bytes[i] = __ldg(reinterpret_cast<const uint4*>(row + offset));
    }
    if constexpr (kUnit > 0) {
      const std::uint8_t* row = thread_ % 2 == 0 ? rows_[kRow] : rows_[kRow + 1];
      const int scales = fp8_656::kScaleOffset - thread_ % 8 * 16;
      step.scale = row == nullptr ? 0 : __ldg(reinterpret_cast<const float*>(row + scales) + group);
    }
  }

  template <class Pipe, int... kStep>
  __device__ __forceinline__ void convert_block(Pipe& pipe, const BlockRange& range, int block,
                                                std::integer_sequence<int, kStep...>) {
    (convert_step<kStep>(pipe, range, block), ...);
  }

  /// Converts a step, and asks for the one kDepth later.
  template <int kStep, class Pipe>
  __device__ __forceinline__ void convert_step(Pipe& pipe, const BlockRange& range, int block) {
    convert<kStep>(pipe);
    if constexpr (kStep == kSteps - kDepth) enter_next(range, block + 1);
    constexpr int kLater = kStep + kDepth;
    const bool into_next = kLater >= kSteps;
    const int turn = block - range.begin + (into_next ? 1 : 0);
    request<kLater % kSteps>(into_next && under_way_ ? 0 : turn);
  }

  /// Goes on to this block of the range, or past its end to the next range.
  __device__ __forceinline__ void enter_next(const BlockRange& range, int block) {
    if (block < range.end) return enter_block(range, block);
    under_way_ = has_next_;
    if (has_next_) {
      if (!has_next_entries_) look_up_next();  // it was announced after this range's last block was entered
      has_next_ = false;
      return enter_block(next_, next_.begin);
    }
#pragma unroll
    for (const std::uint8_t*& row : rows_) row = nullptr;
  }

  /// Into the block's tiles: waits until they are free, and says that they are full.
  template <int kStep, class Pipe>
  __device__ __forceinline__ void convert(Pipe& pipe) {
    constexpr int kUnit = kStep / kPasses, kRow = kStep % kPasses * 2;
    constexpr int kFirst = kUnit == 0 ? 0 : 2 * kUnit - 1, kTiles = kUnit == 0 ? 1 : 2;
    const Step& step = steps_[kStep % kDepth];
    if constexpr (kRow == 0) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) pipe.wait_empty(kFirst + i);
    }
    if constexpr (kUnit == 0) {
      if (kRow == 0 && thread_ == 0) pipe.live() = live_;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<uint4*>(pipe.tile(0).bytes + unit_offset(row_of(kRow + i), thread_ % 8)) =
            step.bytes[i];
      }
    } else {
      // An octet's first four lanes have 64 columns for one tile, the others for the next. Both write 32
      // bytes a lane in two stores; the others begin with the second 16, so that no two lanes meet in a bank.
      const int lane = thread_ % 8;
      const std::uint32_t swapped = lane / 4;
      const std::uint32_t tile = ptx::select(swapped, ptx::shared_address(&pipe.tile(kFirst + 1)),
                                             ptx::shared_address(&pipe.tile(kFirst)));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float scale = __shfl_sync(0xffffffff, step.scale, i, 8);
        const uint4 x = step.bytes[i];
        const uint2 one = make_uint2(ptx::select(swapped, x.z, x.x), ptx::select(swapped, x.w, x.y));
        const uint2 two = make_uint2(ptx::select(swapped, x.x, x.z), ptx::select(swapped, x.y, x.w));
        const int row = row_of(kRow + i), unit = lane % 4 * 2;
        ptx::store_16_bytes(tile + unit_offset(row, unit + swapped), dequantize(one, scale));
        ptx::store_16_bytes(tile + unit_offset(row, unit + 1 - swapped), dequantize(two, scale));
      }
    }
    if constexpr (kRow + 2 == kRows) publish(pipe, kFirst, kTiles);
  }

  /// Tiles [first, first + count) of the block are written.
  template <class Pipe>
  __device__ __forceinline__ void publish(Pipe& pipe, int first, int count) {
    ptx::fence_for_async_proxy();
    if constexpr (kCluster == 1) {
      __syncwarp();
      if (thread_ % 32 != 0) return;
      for (int i = first; i < first + count; ++i) ptx::arrive(pipe.full(i));
    } else {
      constexpr int kBytes = kOwnRows * kRowBytes;
      const std::uint32_t rank = ptx::rank_in_cluster();
      ptx::named_sync(kLoaderBarrier, kThreads);
      if (thread_ != 0) return;
      for (int i = first; i < first + count; ++i) {
        ptx::arrive_expecting(pipe.full(i), kBytes);  // the other's half
        ptx::copy_to_cta(rank ^ 1, pipe.tile(i).bytes + rank * kBytes, kBytes, pipe.full(i));
      }
    }
  }

  const CacheArguments& cache_;
  const int thread_;
  const int first_row_;

  BlockRange next_ = {};
  bool has_next_ = false;                 // it has blocks, and none was entered
  bool has_next_entries_ = false;         // entries_ are of its first block
  bool under_way_ = false;                // the first steps of the range that comes next have been asked for
  Entries entries_ = {};                  // of the block after the one entered last
  const std::uint8_t* rows_[kRows] = {};  // this thread's 16 bytes of each row; null: it does not count
  std::uint64_t live_ = 0;                // which tokens count, of the block entered last
  Step steps_[kDepth];
};

}  // namespace flashlatent::parts
