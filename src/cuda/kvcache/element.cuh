// Elements of separate keys and values, a chunk of them a lane, from one type to another. Bits are those of
// the CPU backend (core/element.h, core/scaled_e4m3.h).
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/scaled_e4m3.h"
#include "cuda/kvcache/token.cuh"

namespace flashlatent::cuda {

/// e4m3 with a scale elsewhere, where others have an element type.
struct E4m3 {};

template <class Element>
inline constexpr bool kIsE4m3 = std::is_same_v<Element, E4m3>;
template <class Element>
using Bits = std::conditional_t<kIsE4m3<Element>, std::uint8_t, std::uint16_t>;

/// Elements that a lane moves at once: 16 bytes of the wider type.
template <class From, class To>
inline constexpr int kChunk = kIsE4m3<From>&& kIsE4m3<To> ? 16 : 8;

/// `count` elements, `stride` bytes apart; a whole chunk that lies in one aligned piece is one access.
template <int kCount, class T>
__device__ __forceinline__ void load_chunk(const std::uint8_t* from, std::int64_t stride, int count,
                                           bool vector, T (&bits)[kCount]) {
  using Vector = std::conditional_t<sizeof(bits) == 16, uint4, uint2>;
  if (vector && count == kCount) {
    const Vector x = __ldg(reinterpret_cast<const Vector*>(from));
    memcpy(bits, &x, sizeof(x));
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    bits[i] = i < count ? __ldg(reinterpret_cast<const T*>(from + i * stride)) : 0;
}

template <int kCount, class T>
__device__ __forceinline__ void store_chunk(std::uint8_t* to, std::int64_t stride, int count, bool vector,
                                            const T (&bits)[kCount]) {
  using Vector = std::conditional_t<sizeof(bits) == 16, uint4, uint2>;
  if (vector && count == kCount) {
    Vector x;
    memcpy(&x, bits, sizeof(x));
    *reinterpret_cast<Vector*>(to) = x;
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < count) *reinterpret_cast<T*>(to + i * stride) = bits[i];
  }
}

/// By way of fp32 where the types, or e4m3's scales, differ.
template <class From, class To>
__device__ __forceinline__ Bits<To> convert_element(Bits<From> x, float from_scale, float to_scale) {
  if constexpr (std::is_same_v<From, To>) {
    if (!kIsE4m3<From> || from_scale == to_scale) return x;
  }
  float value;
  if constexpr (kIsE4m3<From>) {
    value = fp8_656::decode_scaled(x, from_scale);
  } else {
    value = to_float<From>(x);
  }
  if constexpr (kIsE4m3<To>) {
    return fp8_656::encode_scaled(value, to_scale);
  } else {
    return from_float<To>(value);
  }
}

}  // namespace flashlatent::cuda
