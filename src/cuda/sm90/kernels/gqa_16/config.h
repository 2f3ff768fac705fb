// Compile-time shape of gqa_16.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/kernels/gqa_16/keys.h"

namespace flashlatent::gqa_16 {

/// The type of an e4m3 cache's elements. Not CUDA's type, whose header takes 0.6 s to compile.
struct E4m3 {};

/// Cached_: bf16, fp16 or E4m3. Queries and outputs have that type, too; with E4m3 they are bf16 or fp16
/// (given.cuh). kDim_: elements of a key and of a value, rounded up. kColumns_: query rows of a tile, a
/// multiple of 8. kPacked_: keys and values lie as in vLLM's packed cache.
template <class Cached_, int kDim_, int kColumns_, bool kPacked_>
struct Config {
  static constexpr bool kFp8 = std::is_same_v<Cached_, E4m3>;
  // The type that is multiplied: e4m3 becomes fp16 in one instruction, bf16 in four.
  using Product = std::conditional_t<kFp8, __half, Cached_>;
  static constexpr int kDim = kDim_;
  static constexpr int kColumns = kColumns_;
  static constexpr bool kPacked = kPacked_;

  // Tokens of a warp's step.
  static constexpr int kStepTokens = step_tokens_of(kFp8);
  static constexpr int kTokenTiles = kStepTokens / 16;
  static constexpr std::uint32_t kAllLive = kFp8 ? 0xffffffff : 0xffff;
  static constexpr int kWarps = warps_of(kDim);
  static constexpr int kThreads = 32 * kWarps;

  // A stage: 16 tokens' keys, then their values (e4m3: twice), laid out as TMA writes them.
  static constexpr int kElementBytes = kFp8 ? 1 : 2;
  static constexpr int kUnitElements = 16 / kElementBytes;
  static constexpr int kRowBytes = kDim * kElementBytes;
  static constexpr int kUnits = kRowBytes / 16;  // of a token
  static constexpr int kPlaneBytes = 16 * kRowBytes;
  static constexpr int kTileBytes = 2 * kPlaneBytes;
  static constexpr int kStageBytes = kTokenTiles * kTileBytes;

  // In rows: boxes of 16 tokens by 128 bytes (64, if a row has no more). Units are swizzled so that those of
  // eight consecutive tokens are in eight different banks.
  static constexpr int kBoxBytes = kRowBytes < 128 ? kRowBytes : 128;
  static constexpr int kBoxes = kRowBytes / kBoxBytes;
  static constexpr int kBoxUnits = kBoxBytes / 16;
  __host__ __device__ static constexpr int row_unit(int token, int unit) {
    const int swizzle = kBoxBytes == 128 ? token % 8 : token / 2 % 4;
    return unit / kBoxUnits * 16 * kBoxBytes + token * kBoxBytes + (unit % kBoxUnits ^ swizzle) * 16;
  }

  /// Offset of a unit of a token's key in its plane. Packed: unit by unit, all tokens of each.
  __host__ __device__ static constexpr int key_unit(int token, int unit) {
    return kPacked ? (unit * 16 + token) * 16 : row_unit(token, unit);
  }
  /// The address of the `pair`-th two units of keys, or of values in rows, from the address `first` of the
  /// first two.
  __host__ __device__ static constexpr std::uint32_t pair_of_units(std::uint32_t first, int pair) {
    if (kPacked) return first + pair * 2 * 16 * 16;
    return (first ^ pair % (kBoxUnits / 2) * 32) + pair / (kBoxUnits / 2) * 16 * kBoxBytes;
  }
  /// Packed values: a row has 16 tokens of one element.
  static constexpr int kValueRow = 16 * kElementBytes;

  // At a segment's end warps write their outputs, fp32, to the stage that was used last, while the other
  // stages are filled for the next segment. Where a stage is too small they have memory of their own.
  static constexpr int kOutputBytes = kColumns * kDim * 4;
  /// The place of an element of a row of outputs; eight rows are in eight different banks or pairs of banks.
  __host__ __device__ static constexpr int output_at(int row, int element) {
    return row * kDim + (element ^ row / 2 % 4 * 8);
  }
  static constexpr bool kOutputsApart = kOutputBytes > kStageBytes;
  // kernel.cuh keeps one bit for each token under way, 64 in all.
  static constexpr int kUsefulStages = 64 / kStepTokens + 1;
  static constexpr int kMostStages =
      (226 * 1024 - (kOutputsApart ? kWarps * kOutputBytes : 0)) / (kWarps * kStageBytes);
  static constexpr int kStages = kMostStages < kUsefulStages ? kMostStages : kUsefulStages;

  // If a warp has at least twice as many steps, its first kClearingSteps clear L2 (steps.cuh): on 132
  // multiprocessors twice the 60 MB that L2 holds.
  static constexpr int kClearingSteps = (1 << 20) / (kWarps * kStageBytes);

  static_assert(kDim % 64 == 0 && kColumns % 8 == 0);
  static_assert(kPlaneBytes % 1024 == 0, "the pattern of swizzled boxes");
  static_assert(kStages >= 2, "a step must be on its way while one is used");
};

}  // namespace flashlatent::gqa_16
