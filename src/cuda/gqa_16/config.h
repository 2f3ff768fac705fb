// Compile-time shape of gqa_16.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/gqa_16/keys.h"

namespace flashlatent::gqa_16 {

/// What is cached; not a type of CUDA's, whose header takes 0.6 s to read.
struct E4m3 {};

/// Cached_: bf16, fp16 or E4m3. Queries and outputs are of that type, too, or beside E4m3 of either
/// (given.cuh). kDim_: elements of a key and of a value, rounded up. kColumns_: query rows a tile, a multiple
/// of 8. kPacked_: keys and values lie as in vLLM's cache.
template <class Cached_, int kDim_, int kColumns_, bool kPacked_>
struct Config {
  static constexpr bool kFp8 = std::is_same_v<Cached_, E4m3>;
  // What is multiplied: e4m3 is fp16 in one instruction, bf16 in four.
  using Product = std::conditional_t<kFp8, __half, Cached_>;
  static constexpr int kDim = kDim_;
  static constexpr int kColumns = kColumns_;
  static constexpr bool kPacked = kPacked_;

  // A warp's step.
  static constexpr int kStepTokens = step_tokens_of(kFp8);
  static constexpr int kTokenTiles = kStepTokens / 16;
  static constexpr std::uint32_t kAllLive = kFp8 ? 0xffffffff : 0xffff;
  static constexpr int kWarps = warps_of(kDim);
  static constexpr int kThreads = 32 * kWarps;

  // A stage: 16 tokens' keys, then their values (twice), where TMA puts them.
  static constexpr int kElementBytes = kFp8 ? 1 : 2;
  static constexpr int kUnitElements = 16 / kElementBytes;
  static constexpr int kRowBytes = kDim * kElementBytes;
  static constexpr int kUnits = kRowBytes / 16;  // of a token
  static constexpr int kPlaneBytes = 16 * kRowBytes;
  static constexpr int kTileBytes = 2 * kPlaneBytes;
  static constexpr int kStageBytes = kTokenTiles * kTileBytes;

  // In rows: boxes of 16 tokens by 128 bytes (64, if a row has no more), in which units change places so that
  // those of eight tokens in a row are in eight different banks.
  static constexpr int kBoxBytes = kRowBytes < 128 ? kRowBytes : 128;
  static constexpr int kBoxes = kRowBytes / kBoxBytes;
  static constexpr int kBoxUnits = kBoxBytes / 16;
  __host__ __device__ static constexpr int row_unit(int token, int unit) {
    const int swizzle = kBoxBytes == 128 ? token % 8 : token / 2 % 4;
    return unit / kBoxUnits * 16 * kBoxBytes + token * kBoxBytes + (unit % kBoxUnits ^ swizzle) * 16;
  }

  /// Where a unit of a token's key is in its plane. Packed: unit by unit, all tokens' of each.
  __host__ __device__ static constexpr int key_unit(int token, int unit) {
    return kPacked ? (unit * 16 + token) * 16 : row_unit(token, unit);
  }
  /// From two units of keys, or of values in rows, to the next two: what this gives for the first pair's
  /// place is the pair's.
  __host__ __device__ static constexpr std::uint32_t pair_of_units(std::uint32_t first, int pair) {
    if (kPacked) return first + pair * 2 * 16 * 16;
    return (first ^ pair % (kBoxUnits / 2) * 32) + pair / (kBoxUnits / 2) * 16 * kBoxBytes;
  }
  /// Packed values: a row an element, of 16 tokens.
  static constexpr int kValueRow = 16 * kElementBytes;

  // At a segment's end warps lay down their outputs, fp32, in the stage that was used last, the others being
  // filled for the next segment; in memory of its own where a stage is too small.
  static constexpr int kOutputBytes = kColumns * kDim * 4;
  /// Eight rows are in eight different banks or pairs of them.
  __host__ __device__ static constexpr int output_at(int row, int element) {
    return row * kDim + (element ^ row / 2 % 4 * 8);
  }
  static constexpr bool kOutputsApart = kOutputBytes > kStageBytes;
  // kernel.cuh keeps a bit for each token under way, in 64.
  static constexpr int kUsefulStages = 64 / kStepTokens + 1;
  static constexpr int kMostStages =
      (226 * 1024 - (kOutputsApart ? kWarps * kOutputBytes : 0)) / (kWarps * kStageBytes);
  static constexpr int kStages = kMostStages < kUsefulStages ? kMostStages : kUsefulStages;

  // A warp's first steps, if it has twice as many, clear L2 (steps.cuh): on 132 multiprocessors twice the 60
  // MB that L2 holds.
  static constexpr int kClearingSteps = (1 << 20) / (kWarps * kStageBytes);

  static_assert(kDim % 64 == 0 && kColumns % 8 == 0);
  static_assert(kPlaneBytes % 1024 == 0, "the pattern of swizzled boxes");
  static_assert(kStages >= 2, "a step must be on its way while one is used");
};

}  // namespace flashlatent::gqa_16
