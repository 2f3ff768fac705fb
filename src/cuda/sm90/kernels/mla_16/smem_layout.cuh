// Every byte of mla_16's shared memory, once.
#pragma once

#include <type_traits>

#include "cuda/sm90/kernels/mla_16/config.h"
#include "cuda/sm90/merge/team.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/walk/work_queue.cuh"

namespace flashlatent::mla_16 {

/// Shared memory for the exchange of a team, with room for what comes from each rank.
template <class Config>
struct TeamMemory : sm90::TeamMemory<Config> {
  sm90::TeamUnits<Config> units[Config::kTeam];
  float row_max[kRows];  // this CTA's maxima, at a segment's end
};
struct NoTeam {};

template <class Config_>
struct alignas(1024) SharedMemory {
  using Config = Config_;

  sm90::Tile ring[Config::kRingTiles];
  alignas(128) std::uint8_t p[kRows * sm90::kRowBytes];  // P, kRows x 64 tokens
  float4 scores[Config::kPairedWarps ? kWarps : 1][32];  // from each warp to the other warp of its pair
  alignas(16) float warp_max[kRows][kWarps];             // of a block's scores
  alignas(16) float warp_sum[kRows][kWarps];             // at a segment's end
  std::uint64_t live[Config::kRingBlocks];
  typename Config::Loader::Memory loader;
  sm90::WorkQueue work;
  ptx::Barrier full[Config::kRingBlocks * Config::kBarriers];
  ptx::Barrier empty[Config::kRingBlocks * Config::kBarriers];
  std::conditional_t<(Config::kTeam > 1), TeamMemory<Config>, NoTeam> team;

  __device__ __forceinline__ sm90::TeamUnits<Config>& incoming(int sender, int) { return team.units[sender]; }
};

/// The place of a block in the ring. The loader and each warp have one of their own and move it on.
template <class Config>
class RingPosition {
 public:
  using Element = typename Config::Element;
  static constexpr int kQkChunks = Config::kQkChunks;

  __device__ __forceinline__ explicit RingPosition(SharedMemory<Config>& shared) : shared_(shared) {}

  __device__ __forceinline__ void next_block() {
    if (++block_ < Config::kRingBlocks) return;
    block_ = 0;
    parity_ ^= 1;
  }

  __device__ __forceinline__ void begin_range() {}  // does nothing: segments follow one another in the ring
  __device__ __forceinline__ int chunk(int i) const { return Config::chunk_order(i); }
  __device__ __forceinline__ sm90::Tile& tile(int i) const { return shared_.ring[block_ * kQkChunks + i]; }
  __device__ __forceinline__ std::uint8_t* block() const { return shared_.ring[block_ * kQkChunks].bytes; }
  /// The token's row of the block's i-th tile, and the address of 16 bytes of it.
  __device__ __forceinline__ std::uint8_t* row(int i, int token) const {
    if constexpr (!Config::kWholeBlocks) return tile(i).bytes + token * sm90::kRowBytes;
    return block() + sm90::block_row_offset<kQkChunks>(chunk(i), token);
  }
  __device__ __forceinline__ std::uint32_t unit_address(int i, int token, int unit) const {
    if constexpr (!Config::kWholeBlocks)
      return ptx::shared_address(&tile(i)) + sm90::unit_offset(token, unit);
    return ptx::shared_address(row(i, token)) + sm90::unit_in_row(token, unit);
  }
  __device__ __forceinline__ ptx::Barrier& full(int i) const {
    return shared_.full[block_ * Config::kBarriers + i];
  }
  __device__ __forceinline__ ptx::Barrier& empty(int i) const {
    return shared_.empty[block_ * Config::kBarriers + i];
  }
  __device__ __forceinline__ std::uint64_t& live() const { return shared_.live[block_]; }
  __device__ __forceinline__ void wait_full(int i) const { ptx::wait(full(i), parity_); }
  __device__ __forceinline__ void wait_empty(int i) const { ptx::wait(empty(i), parity_ ^ 1); }

 private:
  SharedMemory<Config>& shared_;
  int block_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace flashlatent::mla_16
