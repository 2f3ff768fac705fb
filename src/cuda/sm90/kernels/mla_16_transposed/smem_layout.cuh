// Every byte of shared memory of the transposed kernel, once.
#pragma once

#include "cuda/sm90/kernels/mla_16_transposed/config.h"
#include "cuda/sm90/ptx/barrier.cuh"

namespace flashlatent::mla_16_transposed {

/// A warpgroup's statistics of its query rows at a segment's end, in base 2; sums are of each warp's tokens.
template <int kRows>
struct Statistics {
  float max[kRows];
  float warp_sum[4][kRows];
};

template <class Config>
struct alignas(1024) SharedMemory {
  sm90::Tile ring[Config::kRingTiles];
  std::uint8_t q[Config::kQueryBytes];               // kRows x 64 tiles
  std::uint8_t p[2][Config::kProbabilityBytes / 2];  // P of each warpgroup, kRows x 64 tokens
  float warp_max[2][4][Config::kRows];
  Statistics<Config::kRows> own[2];     // of each warpgroup
  Statistics<Config::kRows> handed[2];  // from one to the other, alternately
  std::uint64_t live[Config::kLiveSlots];
  typename Config::Loader::Memory loader;
  ptx::Barrier full[Config::kRingTiles];
  ptx::Barrier empty[Config::kRingTiles];
  ptx::Barrier q_full;
  ptx::Barrier q_empty;
  ptx::Barrier has_handed[2];
};

}  // namespace flashlatent::mla_16_transposed
