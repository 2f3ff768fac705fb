// Compile-time shape of the paged kernel.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace flashlatent::paged {

/// kDim_: elements of a key and of a value, rounded up to 16. kColumns_: query rows a tile, a multiple of 8.
/// kFp8_: cached elements are e4m3. kPackedValues_: values lie (d, tokens), as in vLLM's cache.
template <class Element_, int kDim_, int kColumns_, bool kFp8_, bool kPackedValues_>
struct Config {
  using Element = Element_;
  // What is multiplied: e4m3 is fp16 in one instruction, bf16 in four.
  using Product = std::conditional_t<kFp8_, __half, Element_>;
  static constexpr int kDim = kDim_;
  static constexpr int kColumns = kColumns_;
  static constexpr bool kFp8 = kFp8_;
  static constexpr bool kPackedValues = kPackedValues_;

  static constexpr int kStepTokens = 16;  // a warp's share of a block, mma's M
  static constexpr int kWarps = kDim <= 128 ? 8 : 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlockTokens = kStepTokens * kWarps;

  static constexpr int kElementBytes = kFp8 ? 1 : 2;
  static constexpr int kUnitElements = 16 / kElementBytes;
  // Rows are an odd number of 16-byte units, so that eight of them are in eight different banks.
  static constexpr int row_bytes(int bytes) { return (bytes / 16 | 1) * 16; }
  static constexpr int kKeyRow = row_bytes(kDim * kElementBytes);
  static constexpr int kKeyBytes = kStepTokens * kKeyRow;
  // Packed values: a row is one of kDim elements, for 16 tokens; of two units, which change places every four
  // rows, so that eight rows of a unit are in eight different banks.
  static constexpr int kValueRow = kPackedValues ? kStepTokens * kElementBytes : kKeyRow;
  __host__ __device__ static constexpr int packed_unit(int row, int unit) {
    return kFp8 ? unit : unit ^ (row >> 2 & 1);
  }
  static constexpr int kValueBytes = (kPackedValues ? kDim : kStepTokens) * kValueRow;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes;

  static constexpr int kQueryRow = row_bytes(kDim * 2);
  static constexpr int kQueryBytes = kColumns * kQueryRow;
  // At a segment's end warps lay down their outputs, fp32, in the stage that was used last, the others being
  // filled for the next segment; in memory of its own where a stage is too small.
  static constexpr int kOutputRow = kDim + 4;
  static constexpr int kOutputBytes = kColumns * kOutputRow * 4;
  static constexpr bool kOutputsApart = kOutputBytes > kStageBytes;
  static constexpr int kMostStages =
      (226 * 1024 - kQueryBytes - (kOutputsApart ? kWarps * kOutputBytes : 0)) / (kWarps * kStageBytes);
  static constexpr int kStages = kMostStages < 5 ? kMostStages : 5;

  static_assert(kDim % 16 == 0 && kColumns % 8 == 0);
  static_assert(kStages >= 2, "a step must be on its way while one is used");
};

}  // namespace flashlatent::paged
