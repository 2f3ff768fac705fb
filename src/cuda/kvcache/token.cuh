// One cached token from one format to another, by a warp. Bits are those of the CPU backend (core/element.h,
// core/fp8_656.h), NaN included.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "core/fp8_656.h"

namespace flashlatent::cuda {

/// The fp8_656 format, where others have an element type.
struct Fp8Token {};

template <class Element>
__device__ __forceinline__ float to_float(std::uint16_t bits);
template <>
__device__ __forceinline__ float to_float<__nv_bfloat16>(std::uint16_t bits) {
  return __uint_as_float(std::uint32_t{bits} << 16);
}
template <>
__device__ __forceinline__ float to_float<__half>(std::uint16_t bits) {
  if ((bits & 0x7C00) != 0x7C00) return __half2float(__ushort_as_half(bits));
  return __uint_as_float((bits & 0x8000U) << 16 | 0x7F800000U | (bits & 0x3FFU) << 13);
}

template <class Element>
__device__ __forceinline__ std::uint16_t from_float(float x);
template <>
__device__ __forceinline__ std::uint16_t from_float<__nv_bfloat16>(float x) {
  if (isnan(x)) return static_cast<std::uint16_t>(__float_as_uint(x) >> 16 | 0x40);
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
template <>
__device__ __forceinline__ std::uint16_t from_float<__half>(float x) {
  if (isnan(x)) return static_cast<std::uint16_t>((__float_as_uint(x) >> 16 & 0x8000) | 0x7E00);
  return __half_as_ushort(__float2half_rn(x));
}

template <class From, class To>
__device__ __forceinline__ std::uint16_t convert(std::uint16_t bits) {
  if constexpr (std::is_same_v<From, To>) return bits;
  return from_float<To>(to_float<From>(bits));
}
template <class From, class To>
__device__ __forceinline__ std::uint32_t convert_pair(std::uint32_t pair) {
  return convert<From, To>(static_cast<std::uint16_t>(pair)) |
         std::uint32_t{convert<From, To>(static_cast<std::uint16_t>(pair >> 16))} << 16;
}

/// `n` elements; 16 bytes a lane where addresses allow.
template <class From, class To>
__device__ __forceinline__ void convert_span(const std::uint16_t* from, std::uint16_t* to, int n,
                                             bool vectors, int lane) {
  if (!vectors || n % 8 != 0) {
    for (int i = lane; i < n; i += 32) to[i] = convert<From, To>(from[i]);
    return;
  }
#pragma unroll 4
  for (int i = lane; i < n / 8; i += 32) {
    uint4 x = reinterpret_cast<const uint4*>(from)[i];
    x = make_uint4(convert_pair<From, To>(x.x), convert_pair<From, To>(x.y), convert_pair<From, To>(x.z),
                   convert_pair<From, To>(x.w));
    reinterpret_cast<uint4*>(to)[i] = x;
  }
}

/// 16 elements a lane of a 512-element latent: a group of 128 is 8 lanes.
struct LatentShare {
  static constexpr int kValues = fp8_656::kLatentDim / 32;
  static constexpr int kLanes = fp8_656::kGroup / kValues;  // of a group
};

/// Quantises a latent and its RoPE part.
template <class From>
__device__ __forceinline__ void quantize(const std::uint16_t* latent, const std::uint16_t* rope,
                                         std::uint8_t* token, bool vectors, int lane) {
  std::uint32_t pairs[LatentShare::kValues / 2];
  const std::uint16_t* own = latent + lane * LatentShare::kValues;
  if (vectors) {
    const uint4 low = reinterpret_cast<const uint4*>(own)[0], high = reinterpret_cast<const uint4*>(own)[1];
    *reinterpret_cast<uint4*>(&pairs[0]) = low;
    *reinterpret_cast<uint4*>(&pairs[4]) = high;
  } else {
#pragma unroll
    for (int i = 0; i < LatentShare::kValues / 2; ++i)
      pairs[i] = own[2 * i] | std::uint32_t{own[2 * i + 1]} << 16;
  }
  float values[LatentShare::kValues];
  std::uint32_t amax = 0;  // magnitudes of floats compare as integers
#pragma unroll
  for (int i = 0; i < LatentShare::kValues; ++i) {
    values[i] = to_float<From>(static_cast<std::uint16_t>(pairs[i / 2] >> (i % 2 * 16)));
    if (fp8_656::is_finite(values[i])) amax = max(amax, __float_as_uint(values[i]) & 0x7FFFFFFFU);
  }
#pragma unroll
  for (int lanes = 1; lanes < LatentShare::kLanes; lanes *= 2) {
    amax = max(amax, __shfl_xor_sync(0xffffffff, amax, lanes));
  }
  const int exponent = fp8_656::scale_exponent(__uint_as_float(amax));
  const float inverse = fp8_656::power_of_two(-exponent);
  std::uint32_t codes[LatentShare::kValues / 4];
#pragma unroll
  for (int i = 0; i < LatentShare::kValues / 4; ++i) {
    std::uint32_t half[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float x = values[4 * i + 2 * j], y = values[4 * i + 2 * j + 1];
      // x - x is 0, or NaN where x is not finite: e4m3 has no infinity.
      half[j] = __nv_cvt_float2_to_fp8x2(make_float2(x * (inverse + (x - x)), y * (inverse + (y - y))),
                                         __NV_SATFINITE, __NV_E4M3);
    }
    codes[i] = half[0] | half[1] << 16;
  }
  // A token is a multiple of 16 bytes, and so are strides.
  reinterpret_cast<uint4*>(token)[lane] = make_uint4(codes[0], codes[1], codes[2], codes[3]);
  if (lane % LatentShare::kLanes == 0) {
    reinterpret_cast<float*>(token + fp8_656::kScaleOffset)[lane / LatentShare::kLanes] =
        fp8_656::power_of_two(exponent);
  }
  convert_span<From, __nv_bfloat16>(rope, reinterpret_cast<std::uint16_t*>(token + fp8_656::kRopeOffset),
                                    fp8_656::kRopeDim, vectors, lane);
}

/// Dequantises into 576 elements.
template <class To>
__device__ __forceinline__ void dequantize(const std::uint8_t* token, std::uint16_t* to, bool vectors,
                                           int lane) {
  const uint4 codes = reinterpret_cast<const uint4*>(token)[lane];
  const float scale =
      reinterpret_cast<const float*>(token + fp8_656::kScaleOffset)[lane / LatentShare::kLanes];
  const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  std::uint32_t pairs[LatentShare::kValues / 2];
#pragma unroll
  for (int i = 0; i < LatentShare::kValues / 2; ++i) {
    std::uint32_t bits[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const auto code = static_cast<std::uint8_t>(words[i / 2] >> (i % 2 * 16 + j * 8));
      bits[j] = from_float<To>(fp8_656::decode(code) * scale);
    }
    pairs[i] = bits[0] | bits[1] << 16;
  }
  std::uint16_t* own = to + lane * LatentShare::kValues;
  if (vectors) {
    reinterpret_cast<uint4*>(own)[0] = *reinterpret_cast<const uint4*>(&pairs[0]);
    reinterpret_cast<uint4*>(own)[1] = *reinterpret_cast<const uint4*>(&pairs[4]);
  } else {
#pragma unroll
    for (int i = 0; i < LatentShare::kValues; ++i)
      own[i] = static_cast<std::uint16_t>(pairs[i / 2] >> (i % 2 * 16));
  }
  convert_span<__nv_bfloat16, To>(reinterpret_cast<const std::uint16_t*>(token + fp8_656::kRopeOffset),
                                  to + fp8_656::kLatentDim, fp8_656::kRopeDim, vectors, lane);
}

/// Where a token comes from, and how long its two parts are: `rope` may be elsewhere than behind `latent`.
struct TokenParts {
  const void* latent;  // of an fp8_656 token: its begin
  const void* rope;
};
struct TokenDims {
  int latent, rope;
  bool vectors;  // all addresses are multiples of 16 bytes
};

template <class From, class To>
__device__ __forceinline__ void move_token(TokenParts from, void* to, TokenDims dims, int lane) {
  if constexpr (std::is_same_v<From, Fp8Token> && std::is_same_v<To, Fp8Token>) {
    for (int i = lane; i < fp8_656::kTokenBytes / 16; i += 32) {
      static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from.latent)[i];
    }
  } else if constexpr (std::is_same_v<From, Fp8Token>) {
    dequantize<To>(static_cast<const std::uint8_t*>(from.latent), static_cast<std::uint16_t*>(to),
                   dims.vectors, lane);
  } else if constexpr (std::is_same_v<To, Fp8Token>) {
    quantize<From>(static_cast<const std::uint16_t*>(from.latent),
                   static_cast<const std::uint16_t*>(from.rope), static_cast<std::uint8_t*>(to), dims.vectors,
                   lane);
  } else {
    convert_span<From, To>(static_cast<const std::uint16_t*>(from.latent), static_cast<std::uint16_t*>(to),
                           dims.latent, dims.vectors, lane);
    convert_span<From, To>(static_cast<const std::uint16_t*>(from.rope),
                           static_cast<std::uint16_t*>(to) + dims.latent, dims.rope, dims.vectors, lane);
  }
}

/// A row of zeros in its place.
template <class To>
__device__ __forceinline__ void clear_token(void* to, TokenDims dims, int lane) {
  if constexpr (std::is_same_v<To, Fp8Token>) {
    for (int i = lane; i < fp8_656::kTokenBytes / 16; i += 32) {
      static_cast<uint4*>(to)[i] = make_uint4(0, 0, 0, 0);
    }
  } else {
    for (int i = lane; i < dims.latent + dims.rope; i += 32) static_cast<std::uint16_t*>(to)[i] = 0;
  }
}

}  // namespace flashlatent::cuda
