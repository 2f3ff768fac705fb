// What differs for fp8_584 tokens: groups of 64 columns have scales, and the last group, RoPE, is bf16, as
// key and as value.
#pragma once

#include "cuda/sm90/kernels/fp8/few_rows_656.cuh"
#include "cuda/sm90/kernels/fp8/token_pairs.cuh"
#include "cuda/sm90/kernels/fp8/units_584.cuh"

namespace flashlatent::fp8::few_rows {

template <class Config>
struct Fp8_584Block {
  static constexpr int kRows = Config::kRows;
  static constexpr int kGroups = fp8_584::kGroups;

  /// S^T = K Q^T. A lane of the quad has 16 bytes of each group; the groups' scales multiply sums, in fp32.
  /// `block`: its address; `q`: descriptor of Q's first tile. Before operands are converted the caller
  /// finishes the products under way. Returns the units of a thread's two tokens, and writes the ratios of
  /// their groups while the last products run: what these overwrite is no longer read (Config::kPlaces).
  template <class Fragment, class Finish>
  __device__ __forceinline__ static Units score(float (&s)[kRows / 2], std::uint32_t block, std::uint64_t q,
                                                std::uint16_t (&ratio)[kGroups][64], Fragment fragment,
                                                Finish finish) {
    constexpr std::uint64_t kTileStep = Config::kTileBytes >> 4;
    const std::uint32_t row = block + pairs::data_offset(fragment().row) + fragment().column * 8;
    float sums[2][kRows / 2];  // of two groups at a time
    fp8::Operands a[2];
    fp8::KeyBytes rope = keys(row + fp8_584::kRopeOffset);
    const fp8::KeyBytes more_rope = keys(row + fp8_584::kRopeOffset + 64);
    TokenScales scales = TokenScales::at(block + pairs::scale_offset(fragment().row));
    const bool odd = scales.low.is_odd() || scales.high.is_odd();
    finish();
    if (__any_sync(0xffffffff, odd)) [[unlikely]] {
      bound_values<kGroups>(
          scales.low, scales.high, [row](int group) { return keys(row + group * fp8_584::kGroup); },
          [](std::uint32_t bound) {
            bound = __vmaxu2(bound, __shfl_xor_sync(0xffffffff, bound, 1));
            return __vmaxu2(bound, __shfl_xor_sync(0xffffffff, bound, 2));
          });
      rope.low.x |= scales.low.nan;
      rope.high.x |= scales.high.nan;
    }
    fp8::take_rope(a[1], rope, more_rope);
    ptx::wgmma_fence();
    fp8::multiply<__nv_bfloat16, kRows>(s, a[1], q + kGroups * kTileStep, false);
    ptx::wgmma_commit();
    fp8::KeyBytes bytes = keys(row);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (i >= 1) ptx::wgmma_wait<1>();
      fp8::widen_keys(a[i % 2], bytes);
      if (i + 1 < kGroups) bytes = keys(row + (i + 1) * fp8_584::kGroup);
      if (i == 2) ptx::pin_registers(s);
      if (i >= 2) add_group(s, sums[i % 2], scales, i - 2);
      ptx::wgmma_fence();
      fp8::multiply<__half, kRows>(sums[i % 2], a[i % 2], q + i * kTileStep, false);
      ptx::wgmma_commit();
    }
    const Units units = {scales.low.unit(), scales.high.unit()};
    store_ratios(ratio, scales, units, fragment());
    ptx::wgmma_wait<1>();
    add_group(s, sums[(kGroups - 2) % 2], scales, kGroups - 2);
    ptx::wgmma_wait<0>();
    add_group(s, sums[(kGroups - 1) % 2], scales, kGroups - 1);
    return units;
  }

  /// o += V^T P^T, warpgroup `me`'s columns of a block. The second warpgroup's last 64 columns are RoPE. `p`:
  /// descriptor of P, behind which all blocks' P for RoPE lie. Before operands are converted the caller
  /// finishes the products under way.
  template <class Finish>
  __device__ __forceinline__ static void multiply(float (&o)[Config::kPartChunks][kRows / 2],
                                                  std::uint32_t block, int me, int thread,
                                                  const std::uint16_t (&ratios)[kGroups][64], std::uint64_t p,
                                                  Finish finish) {
    constexpr int kLast = Config::kPartChunks - 1;
    constexpr std::uint64_t kRopeStep = Config::kPlaces * Config::kTileBytes >> 4;
    const std::uint32_t row = value_row(block, me, thread);
    fp8::Operands a[2];
    std::uint32_t ratio[8];
    fp8::ValueBytes bytes = values(row, 0);
#pragma unroll
    for (auto& chunk : o) ptx::pin_registers(chunk);  // products are under way, or were
#pragma unroll
    for (int i = 0; i < kLast; ++i) {
      load_ratios(ratio, ratios[me * Config::kPartChunks + i], thread);
      if (i == 0) finish();
      if (i >= 2) ptx::wgmma_wait<1>();
      fp8::widen_values(a[i % 2], bytes, ratio);
      if (i + 1 < kLast) bytes = values(row, i + 1);
      multiply_chunk<__half>(o[i], a[i % 2], p);
    }
    if (me == 0) {
      bytes = values(row, kLast);
      load_ratios(ratio, ratios[kLast], thread);
      ptx::wgmma_wait<1>();
      fp8::widen_values(a[kLast % 2], bytes, ratio);
      multiply_chunk<__half>(o[kLast], a[kLast % 2], p);
    } else {
      ptx::wgmma_wait<1>();
      load_rope_values(a[kLast % 2], block, thread);
      multiply_chunk<__nv_bfloat16>(o[kLast], a[kLast % 2], p + kRopeStep);
    }
  }

  /// A group's ratios, in the order of a thread's operands.
  __device__ __forceinline__ static void load_ratios(std::uint32_t (&ratio)[8], const std::uint16_t (&of)[64],
                                                     int thread) {
    const std::uint32_t from = ptx::shared_address(of) + thread % 4 * 32;
    const uint4 first = ptx::load_shared_16_bytes(from), second = ptx::load_shared_16_bytes(from + 16);
    ratio[0] = first.x, ratio[1] = first.y, ratio[2] = first.z, ratio[3] = first.w;
    ratio[4] = second.x, ratio[5] = second.y, ratio[6] = second.z, ratio[7] = second.w;
  }

  /// This lane's token of a block's first 32, at the columns of warpgroup `me` that are its warp's.
  __device__ __forceinline__ static std::uint32_t value_row(std::uint32_t block, int me, int thread) {
    return block + pairs::data_offset(thread % 32) + me * Config::kPartDim + thread / 32 * 16;
  }
  __device__ __forceinline__ static fp8::ValueBytes values(std::uint32_t row, int chunk) {
    return fp8::ValueBytes::at<pairs::kEightTokens / 8>(row + chunk * 64);
  }

  /// The warp's RoPE columns of V, unconverted: rows i and i + 8 are columns i and i + 8.
  __device__ __forceinline__ static void load_rope_values(fp8::Operands& a, std::uint32_t block, int thread) {
    const int lane = thread % 32;
    const std::uint32_t from = block + pairs::data_offset(lane / 16 * 8 + lane % 8) + fp8_584::kRopeOffset +
                               thread / 32 * 32 + lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < 4; ++k) ptx::load_matrices_transposed(a[k], from + k * 2 * pairs::kEightTokens);
  }
  /// Reorders their sums, so that rows i and i + 8 are columns 2 i and 2 i + 1, as for all other columns.
  __device__ __forceinline__ static void put_rope_in_pairs(float (&o)[kRows / 2], int thread) {
    const int lane = thread % 32;
    const int from = lane / 4 * 8 % 32 + lane % 4;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      float &low = o[i / 2 * 4 + i % 2], &high = o[i / 2 * 4 + i % 2 + 2];
      const float even[2] = {__shfl_sync(0xffffffff, low, from), __shfl_sync(0xffffffff, high, from)};
      const float odd[2] = {__shfl_sync(0xffffffff, low, from + 4), __shfl_sync(0xffffffff, high, from + 4)};
      low = lane < 16 ? even[0] : even[1];
      high = lane < 16 ? odd[0] : odd[1];
    }
  }

 private:
  template <class Element>
  __device__ __forceinline__ static void multiply_chunk(float (&o)[kRows / 2], const fp8::Operands& a,
                                                        std::uint64_t p) {
    ptx::wgmma_fence();
    fp8::multiply<Element, kRows>(o, a, p, true);
    ptx::wgmma_commit();
  }

  struct TokenScales {
    UnitScales low, high;

    __device__ __forceinline__ static TokenScales at(std::uint32_t token) {
      return {UnitScales::at(token), UnitScales::at(token + pairs::kEightTokens)};
    }
  };

  __device__ __forceinline__ static fp8::KeyBytes keys(std::uint32_t row) {
    return fp8::KeyBytes::at<pairs::kEightTokens / 8>(row);
  }
  /// s += a group's sums times the group's scales.
  __device__ __forceinline__ static void add_group(float (&s)[kRows / 2], float (&sums)[kRows / 2],
                                                   const TokenScales& scales, int group) {
    const float low = scales.low.bytes.of_group(group), high = scales.high.bytes.of_group(group);
    ptx::pin_registers(sums);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) s[i] = fmaf(sums[i], i % 4 < 2 ? low : high, s[i]);
  }

  /// Each lane of the quad has two groups; the ratio of a thread's second token is two places on.
  __device__ __forceinline__ static void store_ratios(std::uint16_t (&ratio)[kGroups][64],
                                                      const TokenScales& scales, Units units,
                                                      sm90::Fragment fragment) {
    const int group = fragment.column;
    const std::uint32_t low = scales.low.bytes.pair_from(group), high = scales.high.bytes.pair_from(group);
    std::uint16_t* to = ratio[group] + ratio_place_584(fragment.row);
    to[0] = ratio_584(low & 0xFF, units.low);
    to[2] = ratio_584(high & 0xFF, units.high);
    if (group == kGroups - 1) return;
    to[64] = ratio_584(low >> 8 & 0xFF, units.low);
    to[66] = ratio_584(high >> 8 & 0xFF, units.high);
  }
};

}  // namespace flashlatent::fp8::few_rows
