// What differs for fp8_656 tokens: groups of 128 columns have scales, and RoPE is bf16.
#pragma once

#include "cuda/sm90/kernels/fp8/few_rows_smem.cuh"
#include "cuda/sm90/kernels/fp8/products.cuh"

namespace flashlatent::fp8::few_rows {

/// The exponents, as in an fp32, of the units (math/fp8_units.cuh) of a thread's two tokens.
struct Units {
  std::uint32_t low, high;
};

template <class Config>
struct Fp8_656Block {
  static constexpr int kRows = Config::kRows;

  /// S^T = K Q^T. Scales of K's groups multiply sums, in fp32: they need not be powers of two, and an lse
  /// shows a rounding of 2^-12 in a group. `block`: its address; `q`: descriptor of Q's first tile. Before
  /// operands are converted the caller finishes the products under way.
  template <class Fragment, class Finish>
  __device__ __forceinline__ static void score(float (&s)[kRows / 2], std::uint32_t block, std::uint64_t q,
                                               Fragment fragment, Finish finish) {
    constexpr std::uint64_t kTileStep = Config::kTileBytes >> 4;
    const std::uint32_t low = block + fragment().row * fp8_656::kTokenBytes;
    const std::uint32_t row = low + fragment().column * 16;  // 32 bytes a lane of the quad
    float sums[2][kRows / 2];                                // of two groups at a time
    fp8::Operands a[2];
    const fp8::KeyBytes rope = fp8::KeyBytes::at(row + fp8_656::kRopeOffset),
                        more_rope = fp8::KeyBytes::at(row + fp8_656::kRopeOffset + 16);
    finish();
    fp8::take_rope(a[1], rope, more_rope);
    ptx::wgmma_fence();
    fp8::multiply<__nv_bfloat16, kRows>(s, a[1], q + 8 * kTileStep, false);
    ptx::wgmma_commit();
    fp8::KeyBytes bytes = fp8::KeyBytes::at(row);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i >= 1) ptx::wgmma_wait<1>();
      fp8::widen_keys(a[i % 2], bytes);
      if (i + 1 < 8) bytes = fp8::KeyBytes::at(row + key_offset(i + 1));
      if (i == 4) add_groups(s, sums, low, 0);
      ptx::wgmma_fence();
      fp8::multiply<__half, kRows>(sums[i / 2 % 2], a[i % 2], q + i * kTileStep, i % 2 == 1);
      ptx::wgmma_commit();
    }
    add_groups(s, sums, low, 2);
  }

  /// `token`: the address of a thread's first token. Units and ratios are finite for any scales. K's scales
  /// multiply sums; for V, units multiply probabilities and ratios the values.
  __device__ __forceinline__ static Units units(std::uint32_t token) {
    return {unit_exponent(token), unit_exponent(token + 8 * fp8_656::kTokenBytes)};
  }

  /// Each lane of the quad has a group.
  __device__ __forceinline__ static void store_ratios(std::uint16_t (&ratio)[fp8_656::kGroups][64],
                                                      std::uint32_t token, Units units, int thread) {
    const int row = sm90::fragment_of(thread).row;
    store_ratio(ratio[thread % 4], token, units.low, row, thread);
    store_ratio(ratio[thread % 4], token + 8 * fp8_656::kTokenBytes, units.high, row + 8, thread);
  }

 private:
  /// s += sums of two groups from `first` on, times their scales.
  __device__ __forceinline__ static void add_groups(float (&s)[kRows / 2], float (&sums)[2][kRows / 2],
                                                    std::uint32_t low, int first) {
    float scales[2][2];  // of the low and the high token
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scales[i / 2][i % 2] = ptx::load_float(low + i / 2 * 8 * fp8_656::kTokenBytes + fp8_656::kScaleOffset +
                                             (first + i % 2) * 4);
    }
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      ptx::pin_registers(sums[g]);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) s[i] = fmaf(sums[g][i], scales[i % 4 / 2][g], s[i]);
    }
  }

  /// The i-th 16 columns of a lane's 128 bytes of K.
  __device__ __forceinline__ static constexpr int key_offset(int i) {
    return i / 2 * fp8_656::kGroup + i % 2 * 16;
  }

  __device__ __forceinline__ static std::uint32_t unit_exponent(std::uint32_t token) {
    const uint4 scales = ptx::load_shared_16_bytes(token + fp8_656::kScaleOffset);
    return sm90::unit_exponent(fmaxf(fmaxf(__uint_as_float(scales.x), __uint_as_float(scales.y)),
                                     fmaxf(__uint_as_float(scales.z), __uint_as_float(scales.w))));
  }

  __device__ __forceinline__ static void store_ratio(std::uint16_t (&ratio)[64], std::uint32_t token,
                                                     std::uint32_t exponent, int row, int thread) {
    const float scale = ptx::load_float(token + fp8_656::kScaleOffset + thread % 4 * 4);
    ratio[row] = __half_as_ushort(sm90::ratio_to_unit(scale, exponent));
  }
};

}  // namespace flashlatent::fp8::few_rows
