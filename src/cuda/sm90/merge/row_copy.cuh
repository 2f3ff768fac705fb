// Rows of accumulators to memory by the copy engine: a warp stores its 16 rows to shared memory, then lanes
// copy a whole row each. That is 300 instructions for 64 x 256 of a warpgroup, without shuffles, where the
// stores of epilogue.cuh are 780; a call of few blocks runs them once, and waits for each instruction.
#pragma once

#include "cuda/sm90/merge/row_store.cuh"

namespace flashlatent::sm90 {

/// A warp's 16 rows of kCount accumulators a thread, in shared memory. Rows lie 16 bytes apart, so that
/// matrices are stored without bank conflicts.
template <class Element, int kCount>
struct alignas(16) RowRoom {
  static constexpr int kRowBytes = 2 * kCount * sizeof(Element);
  std::uint8_t rows[kWarpRows][kRowBytes + 16];
};

/// Copies the warp's rows of o. For this lane's row (row_of_lane()): `factor` to multiply it by, and `row`,
/// the address of its first column (aligned to 16 bytes), or null if it is not stored. Returns when `room`
/// has been read.
template <class Element, int kCount>
__device__ __forceinline__ void copy_rows(const float (&o)[kCount], float factor, void* row,
                                          RowRoom<Element, kCount>& room) {
  static_assert(kCount % 8 == 0 && sizeof(Element) == 2);
  const int lane = thread_of_warpgroup() % 32;
  const RowPair factors{of_fragment(factor, false), of_fragment(factor, true)};
  const std::uint32_t to = ptx::shared_address(room.rows[lane % kWarpRows]) + lane / kWarpRows * 16;
#pragma unroll
  for (int i = 0; i < kCount / 8; ++i) {  // 16 columns
    const float* x = &o[8 * i];
    const std::uint32_t words[4] = {pack<Element>(x[0] * factors.low, x[1] * factors.low),
                                    pack<Element>(x[2] * factors.high, x[3] * factors.high),
                                    pack<Element>(x[4] * factors.low, x[5] * factors.low),
                                    pack<Element>(x[6] * factors.high, x[7] * factors.high)};
    ptx::store_matrices(to + i * 32, words);
  }
  ptx::fence_for_async_proxy();
  __syncwarp();
  if (lane < kWarpRows && row != nullptr) {
    ptx::copy_to_memory(row, room.rows[lane], RowRoom<Element, kCount>::kRowBytes);
  }
  ptx::wait_until_copies_have_read();
}

}  // namespace flashlatent::sm90
