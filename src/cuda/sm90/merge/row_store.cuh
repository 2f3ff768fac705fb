// Stores rows of accumulators through shared memory: 128 bytes of a row go together, without shuffles. For 64
// x 256 of a warpgroup that takes 300 instructions; with shuffles (epilogue.cuh) 780.
#pragma once

#include "cuda/sm90/math/fragment.cuh"
#include "cuda/sm90/math/softmax.cuh"

namespace flashlatent::sm90 {

inline constexpr int kWarpRows = 16;

/// Computed again at each call: otherwise what follows from it would occupy registers from a kernel's begin
/// on.
__device__ __forceinline__ int thread_of_warpgroup() {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  return thread % 128;
}

/// The row whose values this lane keeps. Lanes 16 apart have the same row.
__device__ __forceinline__ int row_of_lane() {
  const int thread = thread_of_warpgroup();
  return thread / 32 * kWarpRows + thread % kWarpRows;
}
/// From values of the rows of each thread's accumulators: the value of this lane's row.
__device__ __forceinline__ float of_lane(RowPair of_fragment) {
  const int lane = thread_of_warpgroup() % 32;
  const float low = __shfl_sync(0xffffffff, of_fragment.low, lane % 8 * 4);
  const float high = __shfl_sync(0xffffffff, of_fragment.high, lane % 8 * 4);
  return lane & 8 ? high : low;
}
/// From values of each lane's row: the value of the lower or upper row of this thread's accumulators.
__device__ __forceinline__ float of_fragment(float of_my_row, bool high) {
  return __shfl_sync(0xffffffff, of_my_row, thread_of_warpgroup() % 32 / 4 + (high ? 8 : 0));
}

/// Stores the warp's 16 rows of o. For this lane's row: `factor` to multiply it by, and `row`, the address of
/// its first column (aligned to 16 bytes), or null if it is not stored. `room`: the warpgroup's; a warp uses
/// the 2 KB of its rows.
template <class Element, int kCount>
__device__ __forceinline__ void store_rows(const float (&o)[kCount], float factor, std::uint8_t* row,
                                           Tile& room) {
  static_assert(kCount % 32 == 0);
  constexpr int kAtOnce = 4;  // rows in one store of the warp, eight lanes each
  const int thread = thread_of_warpgroup(), lane = thread % 32;
  const int unit = lane % 8;
  const RowPair factors{of_fragment(factor, false), of_fragment(factor, true)};
  std::uint8_t* to[kWarpRows / kAtOnce];
#pragma unroll
  for (int chunk = 0; chunk < kCount / 32; ++chunk) {
    __syncwarp();  // the previous chunk has been read
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 32 * chunk + 8 * k + 2 * i;
        const float by = i % 2 == 0 ? factors.low : factors.high;
        words[i] = pack<Element>(o[at] * by, o[at + 1] * by);
      }
      ptx::store_matrices(fragment_address(room, thread, k), words);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kWarpRows / kAtOnce; ++i) {
      const int mine = i * kAtOnce + lane / 8;
      if (chunk == 0) {  // after the first chunk, whose registers are free now
        to[i] = reinterpret_cast<std::uint8_t*>(
            __shfl_sync(0xffffffff, reinterpret_cast<std::uint64_t>(row), mine));
      }
      const uint4 piece = ptx::load_shared_16_bytes(ptx::shared_address(&room) +
                                                    unit_offset(thread / 32 * kWarpRows + mine, unit));
      if (to[i] != nullptr) ptx::store_16_bytes_to_global(to[i] + chunk * kRowBytes + unit * 16, piece);
    }
  }
}

}  // namespace flashlatent::sm90
