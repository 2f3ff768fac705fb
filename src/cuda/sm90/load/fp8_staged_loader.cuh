// Loads tokens of an fp8_656 or e4m3 cache through a stage of shared memory, by cp.async. A thread converts
// the raw bytes that it has itself loaded, so no barrier is needed. The stage holds a block. As soon as a
// unit of a block has been read, the same unit of the next block is loaded into its place, across segments.
#pragma once

#include "cuda/sm90/load/fp8_tokens.cuh"

namespace flashlatent::sm90 {

/// Used by eight warps.
template <class Format>
class Fp8StagedLoaderOf : public Fp8Tokens<8, 1, true, Format> {
  using Base = Fp8Tokens<8, 1, true, Format>;
  using Base::kept_, Base::kUnits, Base::lane, Base::under_way_;

 public:
  using Base::kThreads;
  static constexpr bool kSparesRegisters = false;

  /// A block's raw bytes, each thread's own: steps, and the scale of one group.
  struct Memory {
    uint4 steps[kUnits][2][kThreads];
    float scales[kThreads];
    typename Base::Kept kept;
  };

  __device__ __forceinline__ Fp8StagedLoaderOf(const CacheArguments& cache, const CUtensorMap&, int thread,
                                               Memory& memory)
      : Base(cache, thread, memory.kept),
        stage_(ptx::shared_address(&memory.steps[0][0][thread])),
        staged_scale_(ptx::shared_address(&memory.scales[thread])) {}

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    int left = range.end - range.begin;
    if (left > 0 && !under_way_) {
      this->template locate<false>();
      this->look_up();
      enter();
      request_block(std::make_integer_sequence<int, kUnits>());
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
  /// From now on loads are of the block located last.
  __device__ __forceinline__ void enter() {
    const std::uint8_t* token = this->token_of_quad();
    // A lane loads the scale of one group.
    if constexpr (!kHasCacheScale<Format>)
      ptx::copy_4_bytes(staged_scale_, token + fp8_656::kScaleOffset + lane() % 4 * 4);
    row_ = token + this->rope_begin();
  }

  /// Starts loading a unit of the block entered last.
  template <int kUnit>
  __device__ __forceinline__ void request() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (Base::has_half(kUnit, half)) ptx::copy_16_bytes(raw(kUnit, half), row_ + Base::from(kUnit, half));
    }
    if constexpr (kUnit == 0 && !kHasCacheScale<Format>) row_ -= this->rope_excess();
  }
  template <int... kUnit>
  __device__ __forceinline__ void request_block(std::integer_sequence<int, kUnit...>) {
    ((request<kUnit>(), ptx::copy_commit()), ...);
  }

  /// Where its bytes land.
  __device__ __forceinline__ std::uint32_t raw(int unit, int half) const {
    return stage_ + (unit * 2 + half) * kThreads * 16;
  }

  template <class Pipe, int... kUnit>
  __device__ __forceinline__ void convert_block(Pipe& pipe, std::integer_sequence<int, kUnit...>) {
    (convert_unit<kUnit>(pipe), ...);
  }

  /// Takes a unit from the stage, starts loading the same unit of the next block, and converts.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ void convert_unit(Pipe& pipe) {
    ptx::copy_wait<kUnits - 1>();
    const uint4 first = ptx::load_shared_16_bytes(raw(kUnit, 0));
    uint4 second = {};
    if constexpr (Base::has_half(kUnit, 1)) second = ptx::load_shared_16_bytes(raw(kUnit, 1));
    std::uint32_t live = 0;
    if constexpr (kUnit == 0) {
      if constexpr (!kHasCacheScale<Format>) scales_ = ptx::load_float(staged_scale_);
      live = kept_.live;
      this->template locate<false>();
      if (under_way_) enter();
    }
    if (under_way_) request<kUnit>();
    ptx::copy_commit();
    if constexpr (kUnit == 0) this->look_up();
    pipe.wait_empty(2 * kUnit);
    if constexpr (kUnit == 0) this->publish_live(pipe, live);
    const float scale = Base::template scale_of<kUnit>(scales_);
    this->template store_unit<kUnit>(pipe, first, second, scale);
    this->template publish<kUnit>(pipe);
  }

  const std::uint32_t stage_, staged_scale_;  // this thread's place in each
  const std::uint8_t* row_ = nullptr;         // 16 bytes of this thread's token
  float scales_ = 0;                          // one group for each lane
};

using Fp8StagedLoader = Fp8StagedLoaderOf<Fp8_656Rows>;

}  // namespace flashlatent::sm90
