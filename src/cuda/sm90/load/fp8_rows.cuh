// Rows of the FP8 caches as the loaders to bf16 tiles see them: where a tile's 64 elements are, and how they
// become bf16. A block is loaded in units of one or two tiles, which share barriers.
#pragma once

#include <cuda_fp8.h>

#include "core/formats/e4m3_latent.h"
#include "core/formats/fp8_584.h"
#include "core/formats/fp8_656.h"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/ptx/convert.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/arguments.h"

namespace flashlatent::sm90 {

/// Dead tokens are read from here, in every format, so that no load depends on whether a token is dead.
__device__ constexpr uint4 kZeroRow[fp8_656::kTokenBytes / 16] = {};

/// Four e4m3 times a pair of equal bf16 powers of two; exact unless the result is beyond bf16. e4m3 fits
/// fp16, which fits fp32. Since e4m3 has three bits of mantissa, the upper half of the fp32 is bf16. 2.5
/// instructions a value.
__device__ __forceinline__ uint2 times_power_of_two(std::uint32_t codes, std::uint32_t scale_pair) {
  const ptx::HalfPairs halves = ptx::widen_e4m3(codes);
  const auto scaled = [&](std::uint32_t pair) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    const std::uint32_t upper = __byte_perm(__float_as_uint(two.x), __float_as_uint(two.y), 0x7632);
    std::uint32_t product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(upper), "r"(scale_pair));
    return product;
  };
  return make_uint2(scaled(halves.low), scaled(halves.high));
}

/// Four e4m3 as bf16: exact. 1.5 instructions a value.
__device__ __forceinline__ uint2 as_bf16(std::uint32_t codes) {
  const ptx::HalfPairs halves = ptx::widen_e4m3(codes);
  const auto widened = [](std::uint32_t pair) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    return __byte_perm(__float_as_uint(two.x), __float_as_uint(two.y), 0x7632);
  };
  return make_uint2(widened(halves.low), widened(halves.high));
}

/// Four e4m3 times any fp32 scale, rounded once. 3 instructions a value.
__device__ __forceinline__ uint2 times_fp32(std::uint32_t codes, float scale) {
  const ptx::HalfPairs halves = ptx::widen_e4m3(codes);
  const auto scaled = [&](std::uint32_t pair) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    return pack<__nv_bfloat16>(two.x * scale, two.y * scale);
  };
  return make_uint2(scaled(halves.low), scaled(halves.high));
}

/// fp8_584: the whole row is key and value, and RoPE is the last tile. Scales are apart from data.
struct Fp8_584Rows {
  static constexpr int kDataBytes = fp8_584::kDataBytes;
  static constexpr int kPitch = kDataBytes;  // in shared memory: rows begin 64 bytes apart, modulo all banks
  static constexpr bool kScalesApart = true;
  static constexpr int kTiles = 8;
  static constexpr int kRopeTile = 7;
  static constexpr int kRopeOffset = fp8_584::kRopeOffset;
  __host__ __device__ static constexpr int codes_offset(int tile) { return tile * fp8_584::kGroup; }

  /// One byte for each group.
  using Scales = uint2;
  __device__ __forceinline__ static int scales_offset(int page_size, int in_page) {
    return static_cast<int>(fp8_584::scale_offset(page_size, in_page) - fp8_584::data_offset(in_page));
  }
  __device__ __forceinline__ static Scales load_scales(const std::uint8_t* from) {
    return __ldg(reinterpret_cast<const uint2*>(from));
  }
  __device__ __forceinline__ static Scales load_shared_scales(std::uint32_t from) {
    Scales scales;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(scales.x), "=r"(scales.y) : "r"(from) : "memory");
    return scales;
  }

  /// A tile's scale as two equal bf16: its byte is the exponent. 255 is NaN; 0 counts as 0.
  using Scale = std::uint32_t;
  template <int kTile>
  __device__ __forceinline__ static Scale scale_of(const Scales& scales) {
    constexpr std::uint32_t kSelector = 0x4040 + kTile % 4 * 0x0101;
    const std::uint32_t bytes = __byte_perm(kTile < 4 ? scales.x : scales.y, 0, kSelector);
    const std::uint32_t is_nan = (bytes + 0x00010001) >> 8 & 0x00010001;
    return bytes * 128 + is_nan * 64;
  }
  __device__ __forceinline__ static uint2 convert(std::uint32_t codes, Scale scale) {
    return times_power_of_two(codes, scale);
  }
};

/// fp8_656: fp32 scales, one for two tiles, behind the codes.
struct Fp8_656Scales {
  static constexpr bool kScalesApart = false;
  using Scales = float4;
  __device__ __forceinline__ static int scales_offset(int, int) { return fp8_656::kScaleOffset; }
  __device__ __forceinline__ static Scales load_scales(const std::uint8_t* from) {
    return __ldg(reinterpret_cast<const float4*>(from));
  }
  __device__ __forceinline__ static Scales load_shared_scales(std::uint32_t from) {
    const uint4 bits = ptx::load_shared_16_bytes(from);
    return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                       __uint_as_float(bits.w));
  }
  using Scale = float;
  template <int kGroup>
  __device__ __forceinline__ static Scale scale_of_group(const Scales& s) {
    return kGroup == 0 ? s.x : kGroup == 1 ? s.y : kGroup == 2 ? s.z : s.w;
  }
  __device__ __forceinline__ static uint2 convert(std::uint32_t codes, Scale scale) {
    return times_fp32(codes, scale);
  }
};

/// fp8_656 without RoPE: the last 128 bytes of a token are not read.
struct Fp8_656LatentRows : Fp8_656Scales {
  static constexpr int kDataBytes = fp8_656::kRopeOffset;
  static constexpr int kPitch = 576;  // as Fp8_584Rows::kPitch
  static constexpr int kTiles = 8;
  static constexpr int kRopeTile = -1;
  static constexpr int kRopeOffset = 0;
  __host__ __device__ static constexpr int codes_offset(int tile) { return tile * 64; }
  template <int kTile>
  __device__ __forceinline__ static Scale scale_of(const Scales& scales) {
    return scale_of_group<kTile / 2>(scales);
  }
};

/// e4m3: all elements have the call's scale, which is applied to scores and outputs (cache_scale.cuh); a
/// token has no bytes of scales.
struct CacheScale {
  static constexpr bool kScalesApart = false;
  struct Scales {};
  __device__ __forceinline__ static int scales_offset(int, int) { return 0; }
  using Scale = Scales;
  template <int kTile>
  __device__ __forceinline__ static Scale scale_of(const Scales& none) {
    return none;
  }
  __device__ __forceinline__ static uint2 convert(std::uint32_t codes, Scale) { return as_bf16(codes); }
};
template <class Format>
inline constexpr bool kHasCacheScale = std::is_base_of_v<CacheScale, Format>;

/// Does a list name its format (record_rows.cuh)?
template <class Format>
inline constexpr bool kIsRecord = requires {
  requires Format::kIsRecord;
};

/// e4m3 without RoPE.
struct E4m3LatentRows : CacheScale {
  static constexpr int kDataBytes = e4m3_latent::kLatentDim;
  static constexpr int kPitch = 576;  // as Fp8_584Rows::kPitch
  static constexpr int kTiles = 8;
  static constexpr int kRopeTile = -1;  // no tile is bf16
  static constexpr int kRopeOffset = 0;
  __host__ __device__ static constexpr int codes_offset(int tile) { return tile * 64; }
};

/// e4m3: RoPE is quantised, too. It is not part of V, and it is the first tile, alone in its unit.
struct E4m3Rows : CacheScale {
  static constexpr int kDataBytes = e4m3_latent::kDim;
  static constexpr int kPitch = kDataBytes;
  static constexpr int kTiles = 9;
  static constexpr int kRopeTile = -1;
  static constexpr int kRopeOffset = 0;
  __host__ __device__ static constexpr int codes_offset(int tile) {
    return tile == 0 ? e4m3_latent::kLatentDim : (tile - 1) * 64;
  }
};

/// fp8_656: RoPE is not part of V. It is the first tile, alone in its unit.
struct Fp8_656Rows : Fp8_656Scales {
  static constexpr int kDataBytes = fp8_656::kTokenBytes;
  static constexpr int kPitch = 704;
  static constexpr int kTiles = 9;
  static constexpr int kRopeTile = 0;
  static constexpr int kRopeOffset = fp8_656::kRopeOffset;
  __host__ __device__ static constexpr int codes_offset(int tile) { return (tile - 1) * 64; }
  template <int kTile>
  __device__ __forceinline__ static Scale scale_of(const Scales& scales) {
    return scale_of_group<(kTile - 1) / 2>(scales);
  }
};

}  // namespace flashlatent::sm90
