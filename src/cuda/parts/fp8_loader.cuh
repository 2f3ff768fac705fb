// Tokens of an fp8_656 cache, dequantised to bf16 on their way into tiles: through registers, 16 bytes a
// lane.
//
// A block comes in five units: the RoPE part, a tile as it is, then four groups of 128 elements, two tiles
// each. Eight lanes (an octet) read the 128 bytes of a unit that two neighbouring tokens have, in a step.
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

/// What tokens that do not count are read from: no load then depends on whether they do.
__device__ constexpr uint4 kZeros[fp8_656::kTokenBytes / 16] = {};

/// Four e4m3 times `scale` as four bf16.
__device__ __forceinline__ uint2 dequantize(std::uint32_t values, float scale) {
  std::uint32_t low, high;  // fp16 pairs
  asm("{\n.reg .b16 first, second;\nmov.b32 {first, second}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, first;\ncvt.rn.f16x2.e4m3x2 %1, second;\n}"
      : "=r"(low), "=r"(high)
      : "r"(values));
  auto scaled = [&](std::uint32_t pair) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    return pack<__nv_bfloat16>(two.x * scale, two.y * scale);
  };
  return make_uint2(scaled(low), scaled(high));
}

/// kWarps load. kCluster = 2: CTAs that hold two tiles of query rows of the same tokens each convert half of
/// a block, and copy it to the other ("crossover"). The pipe takes a block's columns in their own order,
/// after RoPE.
template <int kWarps, int kCluster>
class Fp8Loader {
 public:
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kArrivals = kCluster == 1 ? kWarps : 1;
  static constexpr bool kZeroesDead = true;
  static constexpr bool kSharesTiles = true;

  __device__ __forceinline__ Fp8Loader(const CacheArguments& cache, const CUtensorMap&, int thread)
      : cache_(cache),
        thread_(thread),
        late_(thread % 8 / 4),
        first_row_((kCluster == 1 ? 0 : ptx::rank_in_cluster() * kOwnRows) + thread / 8 * 2) {}

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
      request_steps(std::make_integer_sequence<int, kDepth>());
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
  static constexpr int kRowStep = kThreads / 8 * 2;
  static constexpr int kRows = kOwnRows / kRowStep * 2;  // of a thread
  static constexpr int kPasses = kRows / 2;              // steps of a unit
  static constexpr int kSteps = kUnits * kPasses;        // of a block
  static constexpr int kDepth = kUnits;
  static constexpr int kLoaderBarrier = 3;  // named

  __device__ __forceinline__ static const std::uint8_t* zero_token() {
    return reinterpret_cast<const std::uint8_t*>(kZeros);
  }
  static_assert(kRows % 2 == 0 && kSteps % kDepth == 0);

  /// This thread's share of a step, as it is in the cache.
  struct Step {
    uint4 bytes[2];
    float scale;  // of one of the two rows
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
    for (int pass = 0; pass < kPasses; ++pass) {
      const std::uint8_t* begins[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = row_of(2 * pass + i);
        // A warp's rows are all in the first 32 tokens, or all in the second.
        const std::int64_t offset =
            __shfl_sync(0xffffffff, row < 32 ? first_offset : second_offset, row % 32);
        begins[i] = live_ >> row & 1 ? cache + offset : zero_token();
        rows_[2 * pass + i] = begins[i] + thread_ % 8 * 16;
      }
      scales_[pass] =
          reinterpret_cast<const float*>((thread_ % 2 == 0 ? begins[0] : begins[1]) + fp8_656::kScaleOffset);
    }
  }

  /// Nothing comes after the range that is under way.
  __device__ __forceinline__ void read_zeros() {
#pragma unroll
    for (const std::uint8_t*& row : rows_) row = zero_token();
#pragma unroll
    for (const float*& scales : scales_) scales = reinterpret_cast<const float*>(zero_token());
  }

  /// Neighbours; an octet's last four lanes take the second one first.
  __device__ __forceinline__ int row_of(int i) const {
    return first_row_ + i / 2 * kRowStep + static_cast<int>(i % 2 ^ late_);
  }

  template <int... kStep>
  __device__ __forceinline__ void request_steps(std::integer_sequence<int, kStep...>) {
    (request<kStep>(), ...);
  }

  /// Asks for a step of the block entered last.
  template <int kStep>
  __device__ __forceinline__ void request() {
    constexpr int kUnit = kStep / kPasses, kPass = kStep % kPasses;
    constexpr int kOffset = kUnit == 0 ? fp8_656::kRopeOffset : (kUnit - 1) * fp8_656::kGroup;
    Step& step = steps_[kStep % kDepth];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      step.bytes[i] = __ldg(reinterpret_cast<const uint4*>(rows_[2 * kPass + i] + kOffset));
    }
    if constexpr (kUnit > 0) step.scale = __ldg(scales_[kPass] + kUnit - 1);
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
    request<(kStep + kDepth) % kSteps>();
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
    read_zeros();
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
      // An octet's first four lanes have 64 columns for one tile, the others for the next, of the other row:
      // so no two lanes meet in a bank.
      const std::uint32_t tile = ptx::select(late_, ptx::shared_address(&pipe.tile(kFirst + 1)),
                                             ptx::shared_address(&pipe.tile(kFirst)));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float scale = __shfl_sync(0xffffffff, step.scale, late_ * 4 + i, 8);
        const uint4 x = step.bytes[i];
        const int row = row_of(kRow + i), unit = thread_ % 4 * 2;
        const uint2 a = dequantize(x.x, scale), b = dequantize(x.y, scale);
        ptx::store_16_bytes(tile + unit_offset(row, unit), make_uint4(a.x, a.y, b.x, b.y));
        const uint2 c = dequantize(x.z, scale), d = dequantize(x.w, scale);
        ptx::store_16_bytes(tile + unit_offset(row, unit + 1), make_uint4(c.x, c.y, d.x, d.y));
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
  const std::uint32_t late_;  // 1: of the last four of an octet
  const int first_row_;

  BlockRange next_ = {};
  bool has_next_ = false;            // it has blocks, and none was entered
  bool has_next_entries_ = false;    // entries_ are of its first block
  bool under_way_ = false;           // the first steps of the range that comes next have been asked for
  Entries entries_ = {};             // of the block after the one entered last
  const std::uint8_t* rows_[kRows];  // this thread's 16 bytes of each row
  const float* scales_[kPasses];     // of the row whose scales this thread reads, of two
  std::uint64_t live_ = 0;           // which tokens count, of the block entered last
  Step steps_[kDepth];
};

}  // namespace flashlatent::parts
