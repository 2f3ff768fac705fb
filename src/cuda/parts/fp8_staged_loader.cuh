// Tokens of an fp8_656 cache by way of a stage: raw bytes come to shared memory by cp.async, and what a
// thread converts is what it has itself asked for, so that nobody else need know. The stage holds a block: a
// unit is asked for as soon as the same unit of the block before has been read, into the next block and
// segment.
#pragma once

#include "cuda/parts/fp8_tokens.cuh"

namespace flashlatent::parts {

/// By eight warps.
class Fp8StagedLoader : public Fp8Tokens<8, 1, true> {
 public:
  static constexpr bool kSparesRegisters = false;

  /// A block's raw bytes, each thread's own: steps, and the scale of one group.
  struct Memory {
    uint4 steps[kUnits][2][kThreads];
    float scales[kThreads];
    Kept kept;
  };

  __device__ __forceinline__ Fp8StagedLoader(const CacheArguments& cache, const CUtensorMap&, int thread,
                                             Memory& memory)
      : Fp8Tokens(cache, thread, memory.kept),
        stage_(ptx::shared_address(&memory.steps[0][0][thread])),
        staged_scale_(ptx::shared_address(&memory.scales[thread])) {}

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    int left = range.end - range.begin;
    if (left > 0 && !under_way_) {
      locate<false>();
      look_up();
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
  /// From now on requests are of the block located last.
  __device__ __forceinline__ void enter() {
    const std::uint8_t* token = token_of_quad();
    // A lane takes the scale of one group.
    ptx::copy_4_bytes(staged_scale_, token + fp8_656::kScaleOffset + lane() % 4 * 4);
    row_ = token + lane() % 4 * 32;
  }

  /// Asks for a unit of the block entered last.
  template <int kUnit>
  __device__ __forceinline__ void request() {
#pragma unroll
    for (int half = 0; half < 2; ++half) ptx::copy_16_bytes(raw(kUnit, half), row_ + from(kUnit, half));
    if constexpr (kUnit == 0) row_ -= lane() % 4 * 16;
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

  /// Takes a unit from the stage, asks for the same one of the next block, and converts.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ void convert_unit(Pipe& pipe) {
    ptx::copy_wait<kUnits - 1>();
    const uint4 first = ptx::load_shared_16_bytes(raw(kUnit, 0));
    const uint4 second = ptx::load_shared_16_bytes(raw(kUnit, 1));
    std::uint32_t live = 0;
    if constexpr (kUnit == 0) {
      scales_ = ptx::load_float(staged_scale_);
      live = kept_.live;
      locate<false>();
      if (under_way_) enter();
    }
    if (under_way_) request<kUnit>();
    ptx::copy_commit();
    if constexpr (kUnit == 0) look_up();
    pipe.wait_empty(2 * kUnit);
    if constexpr (kUnit == 0) publish_live(pipe, live);
    const float scale = kUnit == 0 ? 0 : __shfl_sync(0xffffffff, scales_, kUnit - 1, 4);
    store_unit<kUnit>(pipe, first, second, scale);
    publish<kUnit>(pipe);
  }

  const std::uint32_t stage_, staged_scale_;  // this thread's parts
  const std::uint8_t* row_ = nullptr;         // 16 bytes of the token that this thread loads
  float scales_ = 0;                          // a group a lane
};

}  // namespace flashlatent::parts
