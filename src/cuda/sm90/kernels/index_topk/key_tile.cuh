// A warp's 16 keys of a stage in registers, as the A operand of wgmma.
//
//   fp8_132    rows of 128 bytes, swizzled by TMA; scales of keys are fp32 and are applied to scores
//   mxfp4_68   rows of 64 bytes. e2m1 becomes e4m3 by table look-up, and the four ue8m0 scales of a key
//   become
//              exponents, relative to the largest: exact where they lie at most 11 binades apart, since e4m3
//              has 12 more than e2m1 needs.
#pragma once

#include "cuda/sm90/kernels/index_topk/products.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::cuda::indexer {

/// What reading keys says of a lane's two rows.
struct KeyRows {
  bool apart[2] = {false, false};  ///< Are scales too far apart? The keys are no operand then.
  float scale = 1;                 ///< Of the row whose score this lane stores.
};

/// `rows`: the warp's 16 keys; `scales`: theirs. `exists`: do the lane's two rows exist?
template <IndexFormat kFormat>
struct KeyTile {
  const std::uint8_t* rows;
  const std::uint32_t* scales;
  int lane;

  __device__ __forceinline__ KeyRows read(Keys& keys, const bool (&exists)[2]) const {
    KeyRows result;
    if constexpr (kFormat == IndexFormat::kFp8_132) {
      result.scale = __uint_as_float(scales[lane / 4 + (lane & 1) * 8]);
#pragma unroll
      for (int i = 0; i < index_keys::kGroups; ++i) load_step(keys.fragments[i], i);
    } else {
      int bases[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t word = scales[lane / 4 + half * 8];
        bases[half] = Scales(word).largest();
        const int exponent = own_scale(word) - bases[half] + kMostExponent;
        result.apart[half] = exists[half] && exponent < kLeastExponent;
        expand(keys, half, exponent);
      }
      const int base = (lane & 1) != 0 ? bases[1] : bases[0];
      result.scale = base == 0xFF ? ue8m0(0xFF) : scale_of_base(base);
    }
    return result;
  }

  /// part += the products of eight heads over 32 columns that have one scale; returns the scale of both rows,
  /// relative to the row's scale that read() returned.
  __device__ __forceinline__ void multiply_rarely(float (&part)[4], float (&factors)[2], int group,
                                                  const std::uint8_t* head_row) const {
    if constexpr (kFormat == IndexFormat::kFp8_132) {
      std::uint32_t fragment[4];
      load_step(fragment, group);
      multiply_rare_step(part, fragment, head_row, group, lane);
      factors[0] = factors[1] = 1;
    } else {
      Keys keys;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t word = scales[lane / 4 + half * 8];
        expand(keys, half, 0);
        const int below = Scales(word).largest() - static_cast<int>(word >> 8 * group & 0xFF);
        factors[half] = exp2f(static_cast<float>(kMostExponent - below));
      }
#pragma unroll
      for (int i = 0; i < index_keys::kGroups; ++i) {
#pragma unroll
        for (std::uint32_t& word : keys.fragments[i]) word = lane % 4 == group ? word : 0;
        multiply_rare_step(part, keys.fragments[i], head_row, i, lane);
      }
    }
  }

 private:
  /// Lane i names row i % 8 of matrix i / 8: rows 0 to 7 and 8 to 15, then their next 16 bytes.
  __device__ __forceinline__ void load_step(std::uint32_t (&fragment)[4], int step) const {
    const std::uint32_t row = ptx::shared_address(rows + lane % 16 * index_keys::kDim);
    ptx::load_matrices(fragment, row + ((2 * step + lane / 16) ^ (lane & 7)) * 16);
  }
  __device__ __forceinline__ int own_scale(std::uint32_t word) const {
    return static_cast<int>(word >> 8 * (lane % 4) & 0xFF);
  }
  /// Row lane / 4 + 8 * half. Four lanes read its 64 bytes: neighbours in memory, so that no banks collide.
  __device__ __forceinline__ void expand(Keys& keys, int half, int exponent) const {
    const uint4 codes = *reinterpret_cast<const uint4*>(
        rows + (lane / 4 + half * 8) * (index_keys::kDim / 2) + lane % 4 * 16);
    const std::uint32_t words[index_keys::kGroups] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      const Expanded expanded = expand_e2m1(words[i], exponent);
      keys.fragments[i][half] = expanded.low;
      keys.fragments[i][2 + half] = expanded.high;
    }
  }
};

}  // namespace flashlatent::cuda::indexer
