// Every byte of shared memory of the transposed kernel, once.
#pragma once

#include "cuda/etap/config.h"
#include "cuda/ptx/barrier.cuh"

namespace flashlatent::etap {

inline constexpr int kLiveSlots = 4;  // blocks in the ring at most, rounded up

template <class Config>
struct alignas(1024) SharedMemory {
  parts::Tile ring[Config::kRingTiles];
  std::uint8_t q[Config::kQueryBytes];               // kRows x 64 tiles; between segments: staging of output
  std::uint8_t p[2][Config::kProbabilityBytes / 2];  // P of each warpgroup, kRows x 64 tokens
  float warp_max[2][4][Config::kRows];
  float warp_sum[2][4][Config::kRows];
  float row_max[2][Config::kRows];
  std::uint64_t live[kLiveSlots];
  ptx::Barrier full[Config::kRingTiles];
  ptx::Barrier empty[Config::kRingTiles];
  ptx::Barrier q_full;
  ptx::Barrier meeting;  // of both warpgroups
};

}  // namespace flashlatent::etap
