// Every byte of shared memory of the direct kernel, once.
#pragma once

#include "cuda/direct/config.h"
#include "cuda/parts/work_queue.cuh"

namespace flashlatent::direct {

template <class Config>
struct alignas(1024) SharedMemory {
  std::uint8_t q[Config::kQueryTiles][Config::kTileBytes];  // fp16, and RoPE in bf16 last
  std::uint8_t p[2][Config::kTileBytes];                    // of the even and the odd block
  std::uint8_t blocks[Config::kSlots][Config::kBlockBytes];  // tokens as they are in the cache
  std::uint16_t ratio[2][fp8_656::kGroups][64];              // of the even and the odd block (units.cuh)
  float warp_max[2][4][Config::kRows];  // of each warpgroup
  float base[2][Config::kRows];         // after the even and after the odd block
  float factor[2][Config::kRows];       // by which sums and outputs shrink for it
  int shrinks[2][2];                    // does any row? Of two warps' rows
  float warp_sum[2][4][Config::kRows];
  float row_factor[Config::kRows];
  int query_max[8];  // of each warp
  std::uint64_t live[Config::kSlots];  // which tokens of a block count
  ptx::Barrier full[Config::kSlots], empty[Config::kSlots];
  ptx::Barrier has_p[2], had_p[2];  // P and what goes with it is there; the other warpgroup has used it
  ptx::Barrier meeting;             // of both warpgroups
  parts::WorkQueue work;
};

inline constexpr int kMaxSharedBytes = 227 * 1024;

/// A place in the ring of blocks; the loader and each warpgroup move one on.
template <class Config>
class Place {
 public:
  __device__ __forceinline__ int slot() const { return slot_; }
  __device__ __forceinline__ std::uint32_t parity() const { return parity_; }
  __device__ __forceinline__ void next() {
    if (++slot_ < Config::kSlots) return;
    slot_ = 0;
    parity_ ^= 1;
  }
  __device__ __forceinline__ Place ahead(int blocks) const {
    Place place = *this;
    if (blocks == 1) place.next();
    return place;
  }

 private:
  int slot_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace flashlatent::direct
