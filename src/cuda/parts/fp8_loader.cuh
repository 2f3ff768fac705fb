// Tokens of an fp8_656 cache, dequantised to bf16 on their way into tiles: through registers, 16 bytes a
// lane.
//
// A block comes in five units: the RoPE part, a tile as it is, then four groups of 128 elements, two tiles
// each. Four lanes (a quad) load a token: half a unit in a step, 16 bytes a lane. As many steps as registers
// hold are under way while one is converted, into the next block and segment. Nothing in the loop may spill:
// a reload would wait for the loads of KV that are under way.
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
/// a block, and give it to the other ("crossover"). The pipe takes a block's columns in their own order,
/// after RoPE.
///
/// In a cluster one lane of a warp fences, then copies the warp's rows. Otherwise who waits for a tile fences
/// (kReaderFences): a fence here is a memory barrier, which waits for the loads that are under way.
template <int kWarps, int kCluster>
class Fp8Loader {
 public:
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kArrivals = kWarps;
  static constexpr bool kZeroesDead = true;
  static constexpr bool kReaderFences = kCluster == 1;
  static constexpr bool kSharesTiles = true;
  // Not in a ring of tiles (`etap`): of a block's odd number of tiles a place is now the first of a pair, now
  // the second, and its barrier would miss phases.
  static constexpr bool kPairs = kWarps == 4;

  /// Of each warp, in shared memory: what it needs once a block and has no registers for.
  struct Memory {
    struct Warp {
      BlockRange ahead;    // being located
      BlockRange next;     // the range after it, if it is announced and was not looked up
      std::uint32_t live;  // which of its 32 tokens count, of the block located last
    } warps[kWarps];
  };

  __device__ __forceinline__ static void prepare(const CUtensorMap&) {}

  __device__ __forceinline__ Fp8Loader(const CacheArguments& cache, const CUtensorMap&, int thread,
                                       Memory& memory)
      : cache_(cache), memory_(memory.warps[thread / 32]) {
    const int first_row = (kCluster == 1 ? 0 : ptx::rank_in_cluster() * kOwnRows) + thread / 32 * kWarpRows;
    const int lane = thread % 32;
    token_ = first_row / 32 * 32 + lane;
    place_ = unit_offset(first_row + lane / 4, lane % 4 * 2);
  }

  __device__ __forceinline__ void look_ahead(const BlockRange& range) {
    if (lane() == 0) memory_.next = range;
    __syncwarp();
    if (block_ == end_) look_up();
  }

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    int left = range.end - range.begin;
    if (left > 0 && !under_way_) {
      locate();
      look_up();
      enter(0);
      request_batch(bytes_[buffer_of(0)], Batch<0>());
    }
    announce();
    pipe.begin_range();
#pragma unroll 1
    for (; left > 0; --left) {
      convert_block(pipe, std::make_integer_sequence<int, kBatches>());
      pipe.next_block();
    }
  }

 private:
  static constexpr int kUnits = 1 + fp8_656::kGroups;
  static constexpr int kOwnRows = kTileRows / kCluster;
  static constexpr int kWarpRows = kOwnRows / kWarps;
  static constexpr int kRows = kWarpRows / 8;        // of a thread, 8 apart
  static constexpr int kSteps = 2 * kUnits * kRows;  // of a block: half a unit of a row
  // While a batch of steps is converted, the next one is under way: no more than one, because ptxas gives all
  // these loads the same scoreboard, and who waits for one of them waits for all.
  static constexpr int kBatch = kWarps > 4 ? 5 : 2;
  static constexpr int kBatches = kSteps / kBatch;
  static constexpr bool kPrefetches = kBatch < 5;
  static constexpr int kLocatingBatch =
      (2 * kRows + kBatch - 1) / kBatch;  // the first unit's tile has gone, live with it
  static_assert(kRows >= 1 && kSteps % kBatch == 0 && (kPairs || kCluster == 1));
  static constexpr int kLastUnitsBatch = 2 * kRows * (kUnits - 1) / kBatch;
  // Whether scales are still needed when those of the next block are asked for.
  static constexpr bool kKeepsScales = 2 * kRows < kBatch;
  template <int kIndex>
  using Batch = std::integral_constant<int, kIndex>;

  // Places come in three stages, each of a block after the other: look_up() asks for a block's entries,
  // locate() makes places of them, a lane a token, and brings those to L2; enter() hands them to the lanes
  // that load the rows.

  /// Not known to be what it was before: what is worked out of it is no candidate for a register of its own.
  template <class T>
  __device__ __forceinline__ static T opaque(T x) {
    asm volatile("" : "+r"(x));
    return x;
  }
  __device__ __forceinline__ int lane() const {
    return opaque(token_) % 32U;
  }
  /// Of its half of the block, the row that this thread loads first.
  __device__ __forceinline__ int row_in_half() const {
    return opaque(place_) / kRowBytes % 32U;
  }

  /// Asks for the entries of the block after the one located last, if one is announced.
  __device__ __forceinline__ void look_up() {
    if (block_ == end_) {
      __syncwarp();
      if (lane() == 0) {
        memory_.ahead = memory_.next;
        memory_.next.end = memory_.next.begin;
      }
      __syncwarp();
      block_ = memory_.ahead.begin;
      end_ = memory_.ahead.end;
    }
    if (block_ < end_) entry_ = entry_of(cache_, memory_.ahead, block_ * 64 + token_);
  }

  __device__ __forceinline__ void locate() {
    offset_ = -1;
    under_way_ = block_ < end_;
    if (!under_way_) return;
    const TokenPlace place = place_of(cache_, entry_, block_ * 64 + token_);
    if (place.page >= 0) offset_ = offset_of(cache_, place, 0);
    const std::uint32_t live = __ballot_sync(0xffffffff, offset_ >= 0);
    if (lane() == 0) memory_.live = live;
    // This warp's tokens, of the 32 that it has located.
    if (kPrefetches && offset_ >= 0 && (lane() ^ row_in_half()) / kWarpRows == 0) {
      const std::uint8_t* token = static_cast<const std::uint8_t*>(cache_.data) + offset_;
#pragma unroll
      for (int i = 0; i < fp8_656::kTokenBytes; i += 128) ptx::prefetch_line_to_l2(token + i);
    }
    ++block_;
  }

  /// From now on requests are of the block located last; of zeros, if none came after the one before.
  __device__ __forceinline__ void enter(std::uint32_t zero) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t offset = __shfl_sync(0xffffffff, offset_, (row_in_half() + i * 8) | zero);
      const std::uint8_t* begin = offset < 0 ? reinterpret_cast<const std::uint8_t*>(kZeros)
                                             : static_cast<const std::uint8_t*>(cache_.data) + offset;
      // A lane takes the scale of one group.
      (kKeepsScales ? next_scales_ : scales_)[i] =
          __ldg(reinterpret_cast<const float*>(begin + fp8_656::kScaleOffset) + lane() % 4);
      rows_[i] = begin + lane() % 4 * 32;
    }
  }

  template <int kIndex>
  __device__ __forceinline__ void request_batch(uint4 (&to)[kBatch], Batch<kIndex>) {
    request_steps(to, std::make_integer_sequence<int, kBatch>(), Batch<kIndex>());
  }
  template <int... kStep, int kIndex>
  __device__ __forceinline__ void request_steps(uint4 (&to)[kBatch], std::integer_sequence<int, kStep...>,
                                                Batch<kIndex>) {
    (request<kIndex * kBatch + kStep>(to[kStep]), ...);
  }

  /// Asks for a step of the block entered last.
  template <int kStep>
  __device__ __forceinline__ void request(uint4& to) {
    constexpr int kRow = kStep % kRows, kUnit = kStep / kRows / 2, kHalf = kStep / kRows % 2;
    const std::uint8_t*& row = rows_[kRow];
    // 16 of a lane's 32 bytes of RoPE: the two units that its converted values have in a tile, so that they
    // are stored to the same places. Of a group, 16 bytes in each half.
    constexpr int kFrom =
        kUnit == 0 ? fp8_656::kRopeOffset + kHalf * 16 : (kUnit - 1) * fp8_656::kGroup + kHalf * 64;
    if constexpr (kUnit == 1 && kHalf == 0) row -= lane() % 4 * 16;
    to = ptx::load_16_bytes(row + kFrom);
  }

  template <class Pipe, int... kIndex>
  __device__ __forceinline__ void convert_block(Pipe& pipe, std::integer_sequence<int, kIndex...>) {
    (convert_batch<kIndex>(pipe), ...);
  }
  /// Two buffers take turns; of an odd number of batches the first has its own.
  __host__ __device__ static constexpr int buffer_of(int batch) {
    return kBatches % 2 == 0 || batch > 0 ? batch % 2 : 2;
  }

  /// Asks for the batch after this one as soon as this one is there, and converts it.
  template <int kIndex, class Pipe>
  __device__ __forceinline__ void convert_batch(Pipe& pipe) {
    constexpr int kNext = (kIndex + 1) % kBatches;
    if constexpr (kIndex == kLocatingBatch) locate();
    if constexpr (!kKeepsScales && kIndex == kLastUnitsBatch) take_scales<kUnits - 1>();
    // Nothing is asked for before this batch is there: its values, made to 0 by what ptxas does not know to
    // be 0, go into addresses.
    const std::uint32_t zero = static_cast<std::uint32_t>(block_ >> 31) & last_;
    const uint4(&bytes)[kBatch] = bytes_[buffer_of(kIndex)];
    if constexpr (kNext == 0) {
      std::uint32_t values = 0;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) values |= bytes[i].x;
      enter(values & zero);
    } else {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const auto row = reinterpret_cast<std::uint64_t>(rows_[i % kRows]);
        rows_[i % kRows] = reinterpret_cast<const std::uint8_t*>(row | (bytes[i].x & zero));
      }
    }
    request_batch(bytes_[buffer_of(kNext)], Batch<kNext>());
    if constexpr (kIndex == kLocatingBatch) look_up();
    convert_steps<kIndex>(pipe, std::make_integer_sequence<int, kBatch>());
  }
  template <int kIndex, class Pipe, int... kStep>
  __device__ __forceinline__ void convert_steps(Pipe& pipe, std::integer_sequence<int, kStep...>) {
    (convert<kIndex * kBatch + kStep>(pipe, bytes_[buffer_of(kIndex)][kStep]), ...);
  }

  template <int kUnit>
  __device__ __forceinline__ void take_scales() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) scale_[i] = __shfl_sync(0xffffffff, scales_[i], kUnit - 1, 4);
  }

  /// Into the block's tiles: waits until they are free, and says that they are full.
  template <int kStep, class Pipe>
  __device__ __forceinline__ void convert(Pipe& pipe, const uint4& x) {
    constexpr int kRow = kStep % kRows, kUnit = kStep / kRows / 2, kHalf = kStep / kRows % 2;
    constexpr int kTile = kUnit == 0 ? 0 : 2 * kUnit - 1 + kHalf;
    if constexpr (kRow == 0 && kHalf == 0) {
      if constexpr (kUnit == 0 && kKeepsScales) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) scales_[i] = next_scales_[i];
      }
      if constexpr (kUnit > 0 && (kKeepsScales || kUnit < kUnits - 1)) take_scales<kUnit>();
      if constexpr (!kPairs && kUnit > 0) pipe.wait_empty(2 * kUnit - 1);
      pipe.wait_empty(2 * kUnit);
      if constexpr (kUnit == 0) publish_live(pipe);
    }
    const std::uint32_t tile = ptx::shared_address(&pipe.tile(kTile)) + kRow * 8 * kRowBytes;
    if constexpr (kUnit == 0) {
      ptx::store_16_bytes(tile + (place_ ^ kHalf * 16), x);
      last_ = x.w;
    } else {
      const float scale = scale_[kRow];
      const uint2 a = dequantize(x.x, scale), b = dequantize(x.y, scale);
      ptx::store_16_bytes(tile + place_, make_uint4(a.x, a.y, b.x, b.y));
      const uint2 c = dequantize(x.z, scale), d = dequantize(x.w, scale);
      ptx::store_16_bytes(tile + (place_ ^ 16), make_uint4(c.x, c.y, d.x, d.y));
      last_ = d.y;
    }
    if constexpr (kRow == kRows - 1 && kHalf == 1) publish<kUnit>(pipe);
  }

  __device__ __forceinline__ static std::uint32_t other() {
    return ptx::rank_in_cluster() ^ 1;
  }

  /// Does this warp say for its 32 tokens which count?
  __device__ __forceinline__ bool tells_live() const {
    return row_in_half() < kWarpRows;
  }

  /// Which of 32 tokens count, with tile 0.
  template <class Pipe>
  __device__ __forceinline__ void publish_live(Pipe& pipe) {
    if (!tells_live() || lane() != 0) return;
    auto& live = reinterpret_cast<std::uint32_t*>(&pipe.live())[opaque(token_) / 32U];
    live = memory_.live;
    if constexpr (kCluster > 1) {
      ptx::send(ptx::address_in(other(), &live), live, ptx::address_in(other(), &pipe.full(0)));
    }
  }

  /// This warp's rows of a unit's tiles are written.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ void publish(Pipe& pipe) {
    __syncwarp();
    if (!ptx::elect_one()) return;
    if constexpr (kCluster > 1) ptx::fence_for_async_proxy();
    ptx::Barrier& full = pipe.full(2 * kUnit);
    if constexpr (kCluster == 1) {
      if constexpr (!kPairs && kUnit > 0) ptx::arrive(pipe.full(2 * kUnit - 1));
      ptx::arrive(full);
    } else {
      // What the other's same warp gives.
      constexpr std::uint32_t kBytes = kWarpRows * kRowBytes;
      ptx::arrive_expecting(full, kUnit > 0 ? 2 * kBytes : tells_live() ? kBytes + 4 : kBytes);
#pragma unroll
      for (int i = kUnit == 0 ? 0 : 2 * kUnit - 1; i <= 2 * kUnit; ++i) {
        ptx::copy_to_cta(other(), pipe.tile(i).bytes + place_ / kBytes * kBytes, kBytes, full);
      }
    }
  }

  const CacheArguments& cache_;
  int token_;            // of a block: what this lane locates
  std::uint32_t place_;  // in a tile: unit 2 (lane % 4) of this thread's first row

  typename Memory::Warp& memory_;
  int block_ = 0, end_ = 0;          // what is left to locate of memory_.ahead
  bool under_way_ = false;           // of the block after this one, if there is one, steps are asked for
  int entry_ = 0;                    // of this lane's token in that block
  std::int64_t offset_ = -1;         // of this lane's token; negative: it does not count
  const std::uint8_t* rows_[kRows];  // 16 bytes of each token that this thread loads
  uint4 bytes_[2 + kBatches % 2][kBatch];     // the batch that is converted, and the one under way
  std::uint32_t last_ = 0;                    // converted
  float next_scales_[kRows], scales_[kRows];  // a group a lane
  float scale_[kRows];
};

}  // namespace flashlatent::parts
