// Tokens of an fp8_656 cache by way of registers, for clusters: a batch of steps is under way while the one
// before is converted.
#pragma once

#include "cuda/parts/fp8_tokens.cuh"

namespace flashlatent::parts {

/// By four warps of each of two CTAs.
class Fp8ClusterLoader : public Fp8Tokens<4, 2> {
 public:
  static constexpr bool kSparesRegisters = true;
  struct Memory {
    Kept warps[kThreads / 32];
  };

  __device__ __forceinline__ Fp8ClusterLoader(const CacheArguments& cache, const CUtensorMap&, int thread,
                                              Memory& memory)
      : Fp8Tokens(cache, thread, memory.warps[thread / 32]) {}

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    int left = range.end - range.begin;
    if (left > 0 && !under_way_) {
      locate<true>();
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
  static constexpr int kSteps = 2 * kUnits * kRows;  // of a block: half a unit of a row
  // While a batch of steps is converted, the next one is under way: no more than one, because ptxas gives all
  // these loads the same scoreboard, and who waits for one of them waits for all.
  static constexpr int kBatch = 2;
  static constexpr int kBatches = kSteps / kBatch;
  static constexpr int kLocatingBatch =
      (2 * kRows + kBatch - 1) / kBatch;  // the first unit's tile has gone, live with it
  static_assert(kSteps % kBatch == 0);
  static constexpr int kLastUnitsBatch = 2 * kRows * (kUnits - 1) / kBatch;
  // Whether scales are still needed when those of the next block are asked for.
  static constexpr bool kKeepsScales = 2 * kRows < kBatch;
  template <int kIndex>
  using Batch = std::integral_constant<int, kIndex>;

  /// From now on requests are of the block located last; of zeros, if none came after the one before.
  __device__ __forceinline__ void enter(std::uint32_t zero) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::uint8_t* begin = token_of_row(i, zero);
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
    if constexpr (kIndex == kLocatingBatch) locate<true>();
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
      pipe.wait_empty(2 * kUnit);
      if constexpr (kUnit == 0) publish_live(pipe, kept_.live);
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

  const std::uint8_t* rows_[kRows];           // 16 bytes of each token that this thread loads
  uint4 bytes_[2 + kBatches % 2][kBatch];     // the batch that is converted, and the one under way
  std::uint32_t last_ = 0;                    // converted
  float next_scales_[kRows], scales_[kRows];  // a group a lane
  float scale_[kRows];
};

}  // namespace flashlatent::parts
