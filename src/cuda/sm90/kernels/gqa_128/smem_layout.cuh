// Every byte of shared memory of gqa_128's kernels, once.
#pragma once

#include "cuda/sm90/kernels/gqa_128/config.h"
#include "cuda/sm90/kernels/gqa_128/jobs.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/barrier.cuh"

namespace flashlatent::gqa_128 {

/// Keys or values of a block: tiles of all its tokens by 64 columns, swizzled like sm90::Tile.
template <class Config>
struct alignas(1024) Block {
  static constexpr int kChunkBytes = Config::kBlockTokens * sm90::kRowBytes;
  std::uint8_t chunks[Config::kChunks][kChunkBytes];

  /// The address of 16-byte unit `unit` of a token.
  __device__ __forceinline__ uint4* unit(int token, int unit) {
    return reinterpret_cast<uint4*>(chunks[unit / 8] + sm90::unit_offset(token, unit % 8));
  }
};

/// Elements of V, 8 of them, that were not finite before they became 0: +inf, -inf, or NaN as both.
struct NotFinite {
  std::uint8_t plus, minus;
};

template <class Config>
struct Stage {
  ptx::Barrier keys_full, keys_empty;
  ptx::Barrier values_full, values_empty;
  ptx::Barrier values_landed;          // segments: values that must be cleaned before they are used
  std::uint64_t live[Config::kWords];  // tokens that count; valid with the keys
  // Tokens with elements in not_finite, for each loading warp; valid with the values.
  std::uint32_t poisoned[4];
};

/// Segments: warps that clean values. All of them arrive at values_full.
inline constexpr int kCleaners = 3;

/// Slots for jobs on their way from the loading to the computing warpgroups.
inline constexpr int kJobSlots = 2;

/// Keys and values as e4m3: token after token, kDim bytes each.
template <class Config, bool kE4m3 = Config::kE4m3>
struct CodeSlots {};
template <class Config>
struct alignas(1024) CodeSlots<Config, true> {
  using Codes = std::uint8_t[Config::kBlockTokens * Config::kDim];

  alignas(128) Codes key_codes[Config::kCodeSlots];
  alignas(128) Codes value_codes[Config::kCodeSlots];
  ptx::Barrier key_codes_full[Config::kCodeSlots], value_codes_full[Config::kCodeSlots];
};

template <class Config>
struct alignas(1024) SharedMemory : CodeSlots<Config> {
  sm90::Tile query[Config::kWarpgroups][Config::kChunks];
  Block<Config> keys[Config::kStages];
  Block<Config> values[Config::kStages];
  NotFinite not_finite[Config::kStages][Config::kBlockTokens][Config::kDim / 8];
  Stage<Config> stages[Config::kStages];
  ptx::Barrier landed;                           // not segments: values that the loading warps clean
  ptx::Barrier cleaned;                          // by all four of these
  float halves[Config::kSegments ? 4 : 1][128];  // segments: maxima and sums of the other warpgroup's rows
  Job jobs[kJobSlots];
  ptx::Barrier jobs_full[kJobSlots], jobs_empty[kJobSlots];
  ptx::Barrier query_full[Config::kWarpgroups], query_empty[Config::kWarpgroups];
};

// d 128: 32 KB of Q, 2 x 64 KB of keys and values (segments 4 x 32 KB), 8 KB of records. From e4m3: 32 KB of
// bytes besides (segments: 2 x 32 KB of keys and values, 64 KB of bytes).
inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace flashlatent::gqa_128
