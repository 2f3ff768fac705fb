// Values that are not finite, in tokens that only some rows of the tile see (by the causal mask).
#pragma once

#include "core/formats/fp8_656.h"
#include "cuda/sm90/math/mask.cuh"

namespace flashlatent::fp8 {

__device__ __forceinline__ bool is_nan_e4m3(std::uint32_t byte) {
  return (byte & 0x7f) == fp8_656::kNan;
}
__device__ __forceinline__ bool is_poison_fp16(std::uint32_t bits) {
  return (bits & 0x7c00) == 0x7c00;
}

/// A warpgroup's columns of V in a block of tokens, and the ratios of their groups.
struct PartOfV {
  std::uint8_t* tokens;  // its first column in the first token
  std::uint16_t (*ratio)[64];

  __device__ __forceinline__ bool is_poison(int token, int column) const {
    return is_nan_e4m3(tokens[token * fp8_656::kTokenBytes + column]) ||
           is_poison_fp16(ratio[column / fp8_656::kGroup][token]);
  }
};

/// Outputs of rows that see a token of `partial` get NaN where its V is not finite: its K is not either, so
/// that the score is NaN or infinite. `poisoned` keeps these rows for each column until the segment's end.
/// `rows_that_see(token)`: a RowSet. Was there any?
template <int kPartDim, class RowsThatSee>
__device__ __forceinline__ bool record_poison(sm90::PoisonedRows* poisoned, const PartOfV& v,
                                              std::uint64_t partial, int thread, RowsThatSee rows_that_see) {
  bool found = false;
#pragma unroll 1
  for (; partial != 0; partial &= partial - 1) {
    const int token = __ffsll(static_cast<long long>(partial)) - 1;
#pragma unroll 1
    for (int column = thread; column < kPartDim; column += 128) {
      if (!v.is_poison(token, column)) continue;
      poisoned[column].add(rows_that_see(token));
      found = true;
    }
  }
  return found;
}

/// Values that are not finite become 0, for the rows that do not see them: their weight is 0, and 0 * NaN is
/// NaN. Each of the 128 threads has its own columns; after their last read of `ratio` all threads must
/// synchronise before this call.
template <int kPartDim>
__device__ __forceinline__ void silence(const PartOfV& v, std::uint64_t partial, int thread) {
#pragma unroll 1
  for (; partial != 0; partial &= partial - 1) {
    const int token = __ffsll(static_cast<long long>(partial)) - 1;
    for (int column = thread; column < kPartDim; column += 128) {
      std::uint8_t& value = v.tokens[token * fp8_656::kTokenBytes + column];
      if (is_nan_e4m3(value)) value = 0;
    }
    if (thread < kPartDim / fp8_656::kGroup && is_poison_fp16(v.ratio[thread][token]))
      v.ratio[thread][token] = 0;
  }
}

}  // namespace flashlatent::fp8
