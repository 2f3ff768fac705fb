// Loads tokens of an fp8_656 or e4m3 cache through registers: one unit's load is under way while the previous
// unit is converted, or waits for its tiles. Meanwhile the next block is prefetched to L2.
#pragma once

#include "cuda/sm90/load/fp8_tokens.cuh"

namespace flashlatent::sm90 {

/// Loads a CTA's first block, by warps that will compute later and whose registers are still free: all loads
/// are under way at once. The tiles must be free.
template <int kCluster, class Format>
class Fp8FirstBlock : public Fp8Tokens<8 / kCluster, kCluster, true, Format> {
  using Base = Fp8Tokens<8 / kCluster, kCluster, true, Format>;
  using Base::kept_, Base::kUnits, Base::lane;

 public:
  __device__ __forceinline__ Fp8FirstBlock(const CacheArguments& cache, int thread)
      : Base(cache, thread, typename Base::Kept{}) {}

  template <class Pipe>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range) {
    this->look_ahead(range);
    this->template locate<false>();
    const std::uint8_t* token = this->token_of_quad();
    float scales = 0;
    if constexpr (!kHasCacheScale<Format>) {
      scales = __ldg(reinterpret_cast<const float*>(token + fp8_656::kScaleOffset) + lane() % 4);
    }
    uint4 bytes[kUnits][2] = {};
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const std::uint8_t* row = token + (unit == 0 ? this->rope_begin() : lane() % 4 * 16);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (Base::has_half(unit, half)) bytes[unit][half] = ptx::load_16_bytes(row + Base::from(unit, half));
      }
    }
    this->publish_live(pipe, kept_.live);
    store(pipe, bytes, scales, std::make_integer_sequence<int, kUnits>());
  }

 private:
  template <class Pipe, int... kUnit>
  __device__ __forceinline__ void store(Pipe& pipe, const uint4 (&bytes)[kUnits][2], float scales,
                                        std::integer_sequence<int, kUnit...>) {
    (convert_unit<kUnit>(pipe, bytes[kUnit], scales), ...);
  }

  template <int kUnit, class Pipe>
  __device__ __forceinline__ void convert_unit(Pipe& pipe, const uint4 (&bytes)[2], float scales) {
    const float scale = Base::template scale_of<kUnit>(scales);
    this->template store_unit<kUnit>(pipe, bytes[0], bytes[1], scale);
    this->template publish<kUnit>(pipe);
  }
};

/// Used by eight warps, in a cluster of two by four warps of each CTA.
template <int kCluster, class Format = Fp8_656Rows>
class Fp8RegisterLoader : public Fp8Tokens<8 / kCluster, kCluster, false, Format> {
  using Base = Fp8Tokens<8 / kCluster, kCluster, false, Format>;
  using Base::block_, Base::kept_, Base::kUnits, Base::lane, Base::look_up, Base::publish_live,
      Base::token_of_quad, Base::under_way_;

 public:
  using Base::kThreads;
  static constexpr bool kSparesRegisters = true;
  static constexpr bool kOneLoop = true;
  using FirstBlock = Fp8FirstBlock<kCluster, Format>;
  struct Memory {
    typename Base::Kept warps[kThreads / 32];
  };

  __device__ __forceinline__ Fp8RegisterLoader(const CacheArguments& cache, const CUtensorMap&, int thread,
                                               Memory& memory)
      : Base(cache, thread, memory.warps[thread / 32]) {}

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    int left = range.end - range.begin;
    if (left > 0 && !under_way_) {
      this->template locate<true>();
      look_up();
      enter(0);
      request<0>(bytes_[buffer_of(0)]);
    }
    announce();
    pipe.begin_range();
#pragma unroll 1
    for (; left > 0; --left) {
      convert_block(pipe, std::make_integer_sequence<int, kUnits>());
      pipe.next_block();
    }
  }

 private:
  // While a unit is converted only one more is under way: ptxas gives all these loads one scoreboard, so a
  // wait for one load is a wait for all.
  using Bytes = uint4[2];

  /// From now on loads are of the block located last; of zeros if there is no further block.
  __device__ __forceinline__ void enter(std::uint32_t zero) {
    const std::uint8_t* token = token_of_quad(zero);
    // A lane loads the scale of one group.
    if constexpr (!kHasCacheScale<Format>)
      scales_ = __ldg(reinterpret_cast<const float*>(token + fp8_656::kScaleOffset) + lane() % 4);
    row_ = token + this->rope_begin();
  }

  /// Starts loading a unit of the block entered last.
  template <int kUnit>
  __device__ __forceinline__ void request(Bytes& to) {
    if constexpr (kUnit == 1 && !kHasCacheScale<Format>) row_ -= this->rope_excess();
    to[0] = ptx::load_16_bytes(row_ + Base::from(kUnit, 0));
    if constexpr (Base::has_half(kUnit, 1)) to[1] = ptx::load_16_bytes(row_ + Base::from(kUnit, 1));
  }

  template <class Pipe, int... kUnit>
  __device__ __forceinline__ void convert_block(Pipe& pipe, std::integer_sequence<int, kUnit...>) {
    (convert_unit<kUnit>(pipe), ...);
  }
  /// Two buffers alternate; the first of an odd number of units has its own.
  __host__ __device__ static constexpr int buffer_of(int unit) {
    return unit > 0 ? unit % 2 : 2;
  }

  /// Waits for this unit, starts loading the next one, and converts this one.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ void convert_unit(Pipe& pipe) {
    constexpr int kNext = (kUnit + 1) % kUnits;
    // RoPE's tile, and with it the live tokens, have been published
    if constexpr (kUnit == 1) this->template locate<true>();
    if constexpr (kUnit == kUnits - 1) take_scale<kUnit>();
    // Starts no load before this unit has arrived: its values, made 0 in a way that ptxas cannot see, are
    // added to the addresses.
    const std::uint32_t zero = static_cast<std::uint32_t>(block_ >> 31) & last_;
    const Bytes& bytes = bytes_[buffer_of(kUnit)];
    if constexpr (kNext == 0) {
      enter((bytes[0].x | bytes[1].x) & zero);
    } else {
      auto row = reinterpret_cast<std::uint64_t>(row_);
      row |= bytes[0].x & zero;
      if constexpr (Base::has_half(kUnit, 1)) row |= bytes[1].x & zero;
      row_ = reinterpret_cast<const std::uint8_t*>(row);
    }
    request<kNext>(bytes_[buffer_of(kNext)]);
    if constexpr (kUnit == 1) look_up();
    convert<kUnit>(pipe, bytes);
  }

  template <int kUnit>
  __device__ __forceinline__ void take_scale() {
    if constexpr (!kHasCacheScale<Format>) scale_ = Base::template scale_of<kUnit>(scales_);
  }

  /// Converts into the block's tiles: waits until they are free, and announces them.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ void convert(Pipe& pipe, const Bytes& bytes) {
    if constexpr (kUnit > 0 && kUnit < kUnits - 1) take_scale<kUnit>();
    pipe.wait_empty(2 * kUnit);
    if constexpr (kUnit == 0) publish_live(pipe, kept_.live);
    last_ = this->template store_unit<kUnit>(pipe, bytes[0], bytes[1], scale_);
    this->template publish<kUnit>(pipe);
  }

  const std::uint8_t* row_ = nullptr;  // 16 bytes of this thread's token
  Bytes bytes_[3];                     // the unit that is converted, and the unit under way
  std::uint32_t last_ = 0;             // converted
  float scales_ = 0;                   // one group for each lane
  float scale_ = 0;
};

}  // namespace flashlatent::sm90
