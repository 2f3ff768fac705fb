// Rows of accumulators to memory by way of 1 KB of shared memory a warp, a strip of 32 columns at a time. For
// 64 x 256 of a warpgroup that takes 400 instructions, where the shuffles of epilogue.cuh take 780; a call of
// few blocks runs them once, and waits for each instruction.
#pragma once

#include "cuda/sm90/merge/row_store.cuh"

namespace flashlatent::sm90 {

/// 32 columns of a warp's 16 rows, of two bytes each.
struct alignas(16) RowStrip {
  static constexpr int kColumns = 32;
  uint4 units[kWarpRows][4];

  /// A row's unit of 8 columns. Swizzled: eight rows of a matrix, and two rows' units, lie in different
  /// banks.
  __device__ __forceinline__ std::uint32_t address(int row, int unit) const {
    return ptx::shared_address(&units[row][unit ^ (row / 2 % 4)]);
  }
};

/// Stores the warp's rows of o. For this lane's row (row_of_lane()): `factor` to multiply it by, and `row`,
/// the address of its first column (aligned to 16 bytes), or null if it is not stored.
template <class Element, int kCount>
__device__ __forceinline__ void store_strips(const float (&o)[kCount], float factor, std::uint8_t* row,
                                             RowStrip& room) {
  constexpr int kValues = RowStrip::kColumns / 2;  // of a thread
  static_assert(kCount % kValues == 0 && sizeof(Element) == 2);
  const int lane = thread_of_warpgroup() % 32, unit = lane % 4;
  const RowPair factors{of_fragment(factor, false), of_fragment(factor, true)};
  std::uint8_t* to[2];  // two stores of a strip, eight rows each, four lanes a row
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    to[half] = reinterpret_cast<std::uint8_t*>(
        __shfl_sync(0xffffffff, reinterpret_cast<std::uint64_t>(row), half * 8 + lane / 4));
  }
#pragma unroll
  for (int strip = 0; strip < kCount / kValues; ++strip) {
    __syncwarp();  // the previous strip has been read
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float* x = &o[strip * kValues + k * 8];
      const std::uint32_t words[4] = {pack<Element>(x[0] * factors.low, x[1] * factors.low),
                                      pack<Element>(x[2] * factors.high, x[3] * factors.high),
                                      pack<Element>(x[4] * factors.low, x[5] * factors.low),
                                      pack<Element>(x[6] * factors.high, x[7] * factors.high)};
      ptx::store_matrices(room.address(lane % kWarpRows, 2 * k + lane / kWarpRows), words);
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 columns = ptx::load_shared_16_bytes(room.address(half * 8 + lane / 4, unit));
      if (to[half] != nullptr) {
        ptx::store_16_bytes_to_global(to[half] + strip * 64 + unit * 16, columns);
      }
    }
  }
}

}  // namespace flashlatent::sm90
