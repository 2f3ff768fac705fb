// Converts elements of separate keys and values, a chunk a lane. Bits are those of the CPU backend
// (core/element.h, core/scaled_e4m3.h).
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/scaled_e4m3.h"
#include "cuda/ops/token.cuh"

namespace flashlatent::cuda {

/// Marks e4m3, whose scale is elsewhere, where others have an element type.
struct E4m3 {};

template <class Element>
inline constexpr bool kIsE4m3 = std::is_same_v<Element, E4m3>;
template <class Element>
using Bits = std::conditional_t<kIsE4m3<Element>, std::uint8_t, std::uint16_t>;

/// Elements of a chunk: 16 bytes are written, because memory writes parts of sectors of 32 bytes slowly.
template <class To>
inline constexpr int kChunk = 16 / sizeof(Bits<To>);
/// Elements of a chunk that are contiguous where they are read: 16 bytes at most.
template <class From, class To>
inline constexpr int kPiece = kIsE4m3<To> && !kIsE4m3<From> ? kChunk<To> / 2 : kChunk<To>;

/// Loads `count` elements that are `stride` bytes apart. A whole chunk in one aligned piece is one access.
template <int kCount, class T>
__device__ __forceinline__ void load_chunk(const std::uint8_t* from, std::int64_t stride, int count,
                                           bool vector, T* bits) {
  constexpr int kBytes = kCount * sizeof(T);
  using Vector = std::conditional_t<kBytes == 16, uint4, uint2>;
  if (vector && count >= kCount) {
    const Vector x = __ldg(reinterpret_cast<const Vector*>(from));
    memcpy(bits, &x, kBytes);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    bits[i] = i < count ? __ldg(reinterpret_cast<const T*>(from + i * stride)) : 0;
}

template <int kCount, class T>
__device__ __forceinline__ void store_chunk(std::uint8_t* to, std::int64_t stride, int count, bool vector,
                                            const T (&bits)[kCount]) {
  if (vector && count == kCount) {
    static_assert(sizeof(bits) == 16);
    uint4 x;
    memcpy(&x, bits, sizeof(x));
    *reinterpret_cast<uint4*>(to) = x;
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < count) *reinterpret_cast<T*>(to + i * stride) = bits[i];
  }
}

/// x / scale, but NaN where x is not finite: e4m3 has no infinity.
__device__ __forceinline__ float e4m3_quotient(float x, float scale) {
  return fp8_656::is_finite(x) ? x / scale : NAN;
}

/// Encodes two numbers to e4m3.
__device__ __forceinline__ std::uint32_t encode_pair(float x, float y) {
  return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
}

/// x / scale for bf16 or fp16, correctly rounded, in 3 instructions (a division takes some 15): x times 1 /
/// scale, and a step of Newton's method. That is right for all significands of 11 bits and of a scale, if
/// nothing leaves fp32's range: scales from 2^-60 to 2^60, and magnitudes up to 2^20 of them.
struct Quotients {
  float scale, inverse;
  bool in_range;

  __device__ __forceinline__ explicit Quotients(float s)
      : scale(s), inverse(1.0F / s), in_range(s >= 0x1p-60F && s <= 0x1p60F) {}
  __device__ __forceinline__ bool hold(float magnitude) const {  // false for infinity and NaN
    return in_range && magnitude * inverse <= 0x1p20F;
  }
  __device__ __forceinline__ float operator()(float x) const {
    const float product = x * inverse;
    return fmaf(-fmaf(product, scale, -x), inverse, product);  // -0 stays -0
  }
};

/// Through fp32 where the types, or e4m3's scales, differ.
template <class From, class To, int kCount>
__device__ __forceinline__ void convert_chunk(const Bits<From> (&from)[kCount], float from_scale,
                                              float to_scale, Bits<To> (&to)[kCount]) {
  if constexpr (std::is_same_v<From, To>) {
    if (!kIsE4m3<From> || from_scale == to_scale) {
      memcpy(to, from, sizeof(to));
      return;
    }
  }
  if constexpr (!kIsE4m3<From> && !kIsE4m3<To>) {
    uint4 word;
    memcpy(&word, from, sizeof(word));
    word = convert_word<From, To>(word);
    memcpy(to, &word, sizeof(word));
    return;
  }
  if constexpr (!kIsE4m3<From> && kIsE4m3<To>) {
    uint4 words[2];
    memcpy(words, from, sizeof(words));
    const std::uint32_t largest = __vmaxu2(largest_magnitudes(words[0]), largest_magnitudes(words[1]));
    const float2 magnitudes = {to_float<From>(largest & 0xFFFF), to_float<From>(largest >> 16)};
    const Quotients quotients(to_scale);
    if (quotients.hold(magnitudes.x) && quotients.hold(magnitudes.y)) {
      auto four = [&](std::uint32_t low, std::uint32_t high) {
        const float2 x = to_floats<From>(low), y = to_floats<From>(high);
        return encode_pair(quotients(x.x), quotients(x.y)) | encode_pair(quotients(y.x), quotients(y.y))
                                                                 << 16;
      };
      const uint4 codes = {four(words[0].x, words[0].y), four(words[0].z, words[0].w),
                           four(words[1].x, words[1].y), four(words[1].z, words[1].w)};
      memcpy(to, &codes, sizeof(codes));
      return;
    }
  }
  if constexpr (kIsE4m3<From> && !kIsE4m3<To>) {
    uint2 codes;
    memcpy(&codes, from, sizeof(codes));
    constexpr std::uint32_t kMagnitudes = 0x7F7F7F7F, kOnes = 0x01010101;
    const bool nan = ((codes.x & kMagnitudes) + kOnes | (codes.y & kMagnitudes) + kOnes) & ~kMagnitudes;
    if (!nan && fp8_656::is_finite(from_scale)) {
      const uint4 word = decode_word<To>(codes, from_scale);
      memcpy(to, &word, sizeof(word));
      return;
    }
  }
  auto value = [&](int i) {
    if constexpr (kIsE4m3<From>) {
      return fp8_656::decode_scaled(from[i], from_scale);
    } else {
      return to_float<From>(from[i]);
    }
  };
  if constexpr (kIsE4m3<To>) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const auto codes = static_cast<std::uint16_t>(
          encode_pair(e4m3_quotient(value(i), to_scale), e4m3_quotient(value(i + 1), to_scale)));
      memcpy(&to[i], &codes, sizeof(codes));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from_float<To>(value(i));
  }
}

}  // namespace flashlatent::cuda
