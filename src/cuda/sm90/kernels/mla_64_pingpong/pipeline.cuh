// Two KV buffers, one a warpgroup: even blocks go into the first, odd blocks into the second.
#pragma once

#include <type_traits>

#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/barrier.cuh"

namespace flashlatent::mla_64_pingpong {

template <int kChunks>
struct KvBuffer {
  sm90::Tile tiles[kChunks];
};

struct NoUnits {};
struct TokenUnits {
  alignas(16) float units[sm90::kTileRows];  // of the block's tokens (math/fp8_units.cuh)
};

template <int kChunks, bool kUnits>
struct KvState : std::conditional_t<kUnits, TokenUnits, NoUnits> {
  ptx::Barrier full[kChunks];
  ptx::Barrier empty[kChunks];  // of all CTAs of a cluster that load tiles together
  std::uint64_t live[2];        // which of the block's tokens count; blocks alternate
};

/// The loader's side, as load/kv_loader.cuh wants it.
template <class Config>
class Pipe {
 public:
  using Element = typename Config::Element;
  static constexpr int kQkChunks = Config::kQkChunks;

  using State = typename Config::State;

  __device__ __forceinline__ Pipe(KvBuffer<kQkChunks>* buffers, State* states)
      : buffers_(buffers), states_(states) {}

  __device__ __forceinline__ void begin_range() { buffer_ = 0; }
  __device__ __forceinline__ int chunk(int i) const { return Config::chunk_order(buffer_, i); }
  __device__ __forceinline__ sm90::Tile& tile(int i) const { return buffers_[buffer_].tiles[chunk(i)]; }
  __device__ __forceinline__ ptx::Barrier& full(int i) const { return states_[buffer_].full[chunk(i)]; }
  __device__ __forceinline__ void wait_empty(int i) const {
    ptx::wait(states_[buffer_].empty[chunk(i)], parity() ^ 1);
  }
  __device__ __forceinline__ std::uint64_t& live() const { return states_[buffer_].live[parity()]; }
  __device__ __forceinline__ float* units() const { return states_[buffer_].units; }
  __device__ __forceinline__ void next_block() {
    parity_ ^= 1U << buffer_;
    buffer_ ^= 1;
  }

 private:
  __device__ __forceinline__ std::uint32_t parity() const { return parity_ >> buffer_ & 1; }

  KvBuffer<kQkChunks>* buffers_;
  State* states_;
  int buffer_ = 0;
  std::uint32_t parity_ = 0;  // a bit a buffer
};

}  // namespace flashlatent::mla_64_pingpong
