// What a thread of a team sends of one row, 16 bytes at a time: its values in the fragment's order, columns
// 16 i + {0, 1, 8, 9} plus the lane's offset.
//
// bf16 calls send fp16 relative to a power of two of the row's values, one for a quad or one for each lane:
// an exchange takes time in proportion to its bytes, and in mla_64_pingpong fp32 takes 4 to 6 us longer. The
// output's 8 bits hide the rounding to 11. fp16 calls send fp32.
#pragma once

#include "cuda/sm90/math/softmax.cuh"

namespace flashlatent::sm90 {

/// Values in 16 bytes.
template <class Element>
inline constexpr int kPacketValues = std::is_same_v<Element, __nv_bfloat16> ? 8 : 4;

/// A power of two by which values fit fp16, and the value of a 1 then.
struct Fp16Scale {
  float scale, unit;

  /// `bound`: the largest finite magnitude, or more. Scaled values are below 2^15, and the unit is no
  /// subnormal.
  __device__ __forceinline__ explicit Fp16Scale(float bound) {
    const std::uint32_t exponent = __float_as_uint(bound) & 0xFFU << 23;  // as in fp32
    const std::uint32_t bits = min((127U + 127 + 14 << 23) - exponent, 253U << 23);
    scale = __uint_as_float(bits);
    unit = __uint_as_float((254U << 23) - bits);
  }
};

/// Value i of a lane's share of one of its two rows.
template <int kCount>
__device__ __forceinline__ float value_of_row(const float (&o)[kCount], bool high, int i) {
  return o[i / 2 * 4 + high * 2 + i % 2];
}

/// A bound of a lane's magnitudes in a row, in half the time of their maximum.
template <int kCount>
__device__ __forceinline__ float sum_of_magnitudes(const float (&o)[kCount], bool high) {
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) sums[i % 4] += fabsf(value_of_row(o, high, i));
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// x * 0 + x is NaN for x that is not finite; fmaxf ignores NaN.
template <int kCount>
__device__ __forceinline__ float largest_finite(const float (&o)[kCount], bool high) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float x = value_of_row(o, high, i);
    largest = fmaxf(largest, fabsf(fmaf(x, 0.0F, x)));
  }
  return largest;
}

/// A bound of the finite magnitudes that this lane's quad has of a row. Called by all lanes of a warp.
template <int kCount>
__device__ __forceinline__ float quad_bound(const float (&o)[kCount], bool high) {
  float bound = quad_sum(sum_of_magnitudes(o, high));
  if (__any_sync(0xffffffff, !(bound < INFINITY))) {
    float finite = largest_finite(o, high);
    finite = fmaxf(finite, __shfl_xor_sync(0xffffffff, finite, 1));
    finite = fmaxf(finite, __shfl_xor_sync(0xffffffff, finite, 2));
    if (!(bound < INFINITY)) bound = finite;
  }
  return bound;
}

/// kCount: values of both rows.
template <class Element, int kCount>
struct PackedRow {
  static constexpr int kPackets = kCount / 2 / kPacketValues<Element>;
  static constexpr bool kScales = kPacketValues<Element> == 8;
  uint4 packets[kPackets];
  float unit;  // the value that a 1 stands for

  /// `bound`: the row's largest finite magnitude, or more.
  __device__ __forceinline__ PackedRow(const float (&o)[kCount], bool high, float bound) {
    auto value = [&](int i) { return value_of_row(o, high, i); };
    if constexpr (!kScales) {
      unit = 1.0F;
#pragma unroll
      for (int i = 0; i < kPackets; ++i) {
        packets[i] = make_uint4(__float_as_uint(value(4 * i)), __float_as_uint(value(4 * i + 1)),
                                __float_as_uint(value(4 * i + 2)), __float_as_uint(value(4 * i + 3)));
      }
    } else {
      const Fp16Scale fp16(bound);
      unit = fp16.unit;
      auto pair = [&](int i) {
        return pack<__half>(value(2 * i) * fp16.scale, value(2 * i + 1) * fp16.scale);
      };
#pragma unroll
      for (int i = 0; i < kPackets; ++i) {
        packets[i] = make_uint4(pair(4 * i), pair(4 * i + 1), pair(4 * i + 2), pair(4 * i + 3));
      }
    }
  }

  /// For the values of this lane's quad in the row.
  __device__ __forceinline__ static float quad_bound(const float (&o)[kCount], bool high) {
    if constexpr (!kScales) return 0;
    return sm90::quad_bound(o, high);
  }

  /// For the values of this lane in both rows.
  __device__ __forceinline__ static RowPair lane_bounds(const float (&o)[kCount]) {
    if constexpr (!kScales) return {0, 0};
    RowPair bounds{sum_of_magnitudes(o, false), sum_of_magnitudes(o, true)};
    if (!(bounds.low + bounds.high < INFINITY)) [[unlikely]] {
      if (!(bounds.low < INFINITY)) bounds.low = largest_finite(o, false);
      if (!(bounds.high < INFINITY)) bounds.high = largest_finite(o, true);
    }
    return bounds;
  }
};

/// x += weight * the packet's values.
template <int kValues>
__device__ __forceinline__ void add_packet(float (&x)[kValues], uint4 packet, float weight) {
  const std::uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kValues == 4) {
      x[i] += __uint_as_float(words[i]) * weight;
    } else {
      const float2 pair = unpack<__half>(words[i]);
      x[2 * i] += pair.x * weight;
      x[2 * i + 1] += pair.y * weight;
    }
  }
}

}  // namespace flashlatent::sm90
