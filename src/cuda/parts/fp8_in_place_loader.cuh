// Tokens of an fp8_656 cache where shared memory has no room for raw bytes: they come by cp.async into the
// tile, where half of what they become will stand, once it is free. What a thread converts is what it has
// itself asked for. The block after is brought to L2 meanwhile.
#pragma once

#include "cuda/parts/fp8_tokens.cuh"

namespace flashlatent::parts {

/// By four warps.
class Fp8InPlaceLoader : public Fp8Tokens<4, 1> {
 public:
  static constexpr bool kSparesRegisters = true;
  struct Memory {
    Kept warps[kThreads / 32];
  };

  __device__ __forceinline__ Fp8InPlaceLoader(const CacheArguments& cache, const CUtensorMap&, int thread,
                                              Memory& memory)
      : Fp8Tokens(cache, thread, memory.warps[thread / 32]) {}

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    int left = range.end - range.begin;
    if (left > 0 && !under_way_) {
      locate<true>();
      look_up();
    }
    announce();
    pipe.begin_range();
#pragma unroll 1
    for (; left > 0; --left) {
      convert_block(pipe, left == 1);
      pipe.next_block();
    }
  }

 private:
  /// From now on requests are of the block located last.
  __device__ __forceinline__ void enter(float (&scales)[kRows]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::uint8_t* token = token_of_row(i);
      // A lane takes the scale of one group.
      scales[i] = __ldg(reinterpret_cast<const float*>(token + fp8_656::kScaleOffset) + lane() % 4);
      rows_[i] = token + lane() % 4 * 32;
    }
  }

  /// Asks for a unit of the block entered last.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ void request(const Pipe& pipe) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        ptx::copy_16_bytes(raw<kUnit>(pipe, half, i), rows_[i] + from(kUnit, half));
      }
    }
    if constexpr (kUnit == 0) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) rows_[i] -= lane() % 4 * 16;
    }
  }

  /// Where its bytes land.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ std::uint32_t raw(const Pipe& pipe, int half, int row) const {
    return tile<kUnit>(pipe, half, row) + (kUnit == 0 ? place_ ^ half * 16 : place_);
  }

  /// The block located last, and locates the next. Of that one units 0 and 1 are asked for where this one
  /// ends, if their tiles are free by then and it is not the `last` of its range.
  template <class Pipe>
  __device__ __forceinline__ void convert_block(Pipe& pipe, bool last) {
    if (is_asked_for_) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) scales_[i] = next_scales_[i];
    } else {
      enter(scales_);
      pipe.wait_empty(0);
      request<0>(pipe);
      pipe.wait_empty(2);
      request<1>(pipe);
    }
    ptx::copy_commit();
    wait_and_request<2>(pipe);
    convert<0>(pipe);
    locate<true>();
    look_up();
    convert<1>(pipe);
    // The right half of V comes free last, in even blocks only after the block before this is converted: to
    // wait for it earlier would be for ever.
    wait_and_request<3>(pipe);
    convert<2>(pipe);
    wait_and_request<4>(pipe);
    convert<3>(pipe);
    Pipe next = pipe;
    next.next_block();
    is_asked_for_ = !last && under_way_ && next.is_empty(0) && next.is_empty(2);
    if (is_asked_for_) {
      enter(next_scales_);
      request<0>(next);
      request<1>(next);
    }
    ptx::copy_commit();
    convert<4>(pipe);
  }
  template <int kUnit, class Pipe>
  __device__ __forceinline__ void wait_and_request(Pipe& pipe) {
    pipe.wait_empty(2 * kUnit);
    request<kUnit>(pipe);
    ptx::copy_commit();
  }

  /// All that was asked for is there, but for the last group. Each step's bytes are read while those before
  /// are converted.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ void convert(Pipe& pipe) {
    ptx::copy_wait<1>();
    if constexpr (kUnit == 0) {
      publish_live(pipe, kept_.live);
    } else {
      uint4 x = ptx::load_shared_16_bytes(raw<kUnit>(pipe, 0, 0));
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float scale = __shfl_sync(0xffffffff, scales_[i], kUnit - 1, 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint4 next = x;
          const int step = 2 * i + half + 1;
          if (step < 2 * kRows) next = ptx::load_shared_16_bytes(raw<kUnit>(pipe, step % 2, step / 2));
          store_converted(tile<kUnit>(pipe, half, i), x, scale);
          x = next;
        }
      }
    }
    publish<kUnit>(pipe);
  }

  const std::uint8_t* rows_[kRows];  // 16 bytes of each token that this thread loads
  float scales_[kRows];              // a group a lane
  // Of the block after the one that is converted; whether its first units are asked for.
  float next_scales_[kRows];
  bool is_asked_for_ = false;
};

}  // namespace flashlatent::parts
