// Rows of the formats whose 512 elements are of one kind, as ListedStagedLoader sees them: mxfp8_528,
// nvfp4_288 and fp8_528. A list names its format (ListedCache::record), so two caches of one item may have
// different formats; all lanes of a warp take the same branch.
#pragma once

#include "core/formats/fp8_528.h"
#include "core/formats/mxfp8_528.h"
#include "core/formats/nvfp4_288.h"
#include "cuda/sm90/load/fp8_rows.cuh"

namespace flashlatent::sm90 {

/// Four e2m1, the low 16 bits of `codes`, as two pairs of bf16: exact. A nibble without its sign is a
/// selector of prmt, which looks up four elements' upper bytes in a table of eight, and their lower bytes in
/// another.
__device__ __forceinline__ uint2 widen_e2m1(std::uint32_t codes) {
  const std::uint32_t at = codes & 0x7777;
  const std::uint32_t upper = __byte_perm(0x3F3F3F00, 0x40404040, at);
  const std::uint32_t lower = __byte_perm(0xC0800000, 0xC0804000, at);
  const std::uint32_t first = __byte_perm(lower, upper, 0x5140), second = __byte_perm(lower, upper, 0x7362);
  return make_uint2(first | (codes << 12 & 0x8000) | (codes << 24 & 0x80000000),
                    second | (codes << 4 & 0x8000) | (codes << 16 & 0x80000000));
}

struct RecordRows {
  static constexpr bool kIsRecord = true;
  static constexpr bool kScalesApart = true;
  static constexpr int kDataBytes = mxfp8_528::kDim;  // of the longest
  static constexpr int kTiles = 8;
  static constexpr int kRopeTile = -1;
  static constexpr int kRopeOffset = 0;
  __host__ __device__ static constexpr int codes_offset(int tile) { return tile * 64; }

  __device__ __forceinline__ static bool is_e2m1(Record record) { return record == Record::kNvfp4_288; }
  __device__ __forceinline__ static int data_bytes(Record record) {
    return is_e2m1(record) ? nvfp4_288::kCodeBytes : mxfp8_528::kDim;
  }
  /// From a token's data to its scales. `Cache`: ListedCache, or these constants of one.
  template <class Cache>
  __device__ __forceinline__ static int scales_offset(const Cache& cache, int in_page) {
    const int data = data_bytes(cache.record);
    if (!cache.scales_apart) return data;
    const int scales = is_e2m1(cache.record) ? nvfp4_288::kScaleBytes : mxfp8_528::kScaleBytes;
    return (cache.page_size.value - in_page) * data + in_page * scales;
  }

  /// The scales of a lane's 16 elements of each tile. A byte each, for tiles 0 to 3 in x and 4 to 7 in y;
  /// fp8_528: fp32, one for two tiles.
  using Scales = uint4;
  /// `quad_lane`: which 16 elements of a tile the lane has.
  __device__ __forceinline__ static Scales load_scales(const std::uint8_t* from, Record record,
                                                       int quad_lane) {
    const uint4 a = __ldg(reinterpret_cast<const uint4*>(from));
    if (record == Record::kFp8_528) return a;
    if (is_e2m1(record)) {  // a word a tile, a byte a lane
      const uint4 b = __ldg(reinterpret_cast<const uint4*>(from) + 1);
      const auto pick = [&](const uint4& four) {
        const std::uint32_t pair = quad_lane | (4 + quad_lane) << 4;  // this lane's byte of either word
        return __byte_perm(__byte_perm(four.x, four.y, pair), __byte_perm(four.z, four.w, pair), 0x5410);
      };
      return make_uint4(pick(a), pick(b), 0, 0);
    }
    // mxfp8_528: two bytes a tile, one for two lanes.
    const int half = quad_lane / 2;
    const std::uint32_t four = half | (2 + half) << 4 | (4 + half) << 8 | (6 + half) << 12;
    return make_uint4(__byte_perm(a.x, a.y, four), __byte_perm(a.z, a.w, four), 0, 0);
  }

  /// 16 elements of a tile; e2m1 is in the first half of `raw`.
  struct Values {
    uint4 low, high;
  };
  template <int kTile>
  __device__ __forceinline__ static Values convert(const uint4& raw, const Scales& scales, Record record) {
    uint2 a, b, c, d;
    if (record == Record::kFp8_528) {
      constexpr int kGroup = kTile / 2;
      const float scale = __uint_as_float(kGroup == 0   ? scales.x
                                          : kGroup == 1 ? scales.y
                                          : kGroup == 2 ? scales.z
                                                        : scales.w);
      a = times_fp32(raw.x, scale), b = times_fp32(raw.y, scale);
      c = times_fp32(raw.z, scale), d = times_fp32(raw.w, scale);
    } else if (is_e2m1(record)) {
      const std::uint32_t byte = __byte_perm(kTile < 4 ? scales.x : scales.y, 0, 0x4440 + kTile % 4);
      const std::uint32_t scale = pair_of_e4m3(byte);
      const auto times = [scale](std::uint32_t codes) {
        const uint2 four = widen_e2m1(codes);
        return make_uint2(product(four.x, scale), product(four.y, scale));
      };
      a = times(raw.x), b = times(raw.x >> 16), c = times(raw.y), d = times(raw.y >> 16);
    } else {
      const std::uint32_t scale = pair_of_ue8m0(kTile < 4 ? scales.x : scales.y, kTile % 4);
      a = times_power_of_two(raw.x, scale), b = times_power_of_two(raw.y, scale);
      c = times_power_of_two(raw.z, scale), d = times_power_of_two(raw.w, scale);
    }
    return {make_uint4(a.x, a.y, b.x, b.y), make_uint4(c.x, c.y, d.x, d.y)};
  }

 private:
  /// A ue8m0 scale as two equal bf16: its byte is the exponent. 255 is NaN; 0 counts as 0.
  __device__ __forceinline__ static std::uint32_t pair_of_ue8m0(std::uint32_t four, int byte) {
    const std::uint32_t bytes = __byte_perm(four, 0, 0x4040 + byte * 0x0101);
    const std::uint32_t is_nan = (bytes + 0x00010001) >> 8 & 0x00010001;
    return bytes * 128 + is_nan * 64;
  }
  /// An e4m3 scale as two equal bf16: exact.
  __device__ __forceinline__ static std::uint32_t pair_of_e4m3(std::uint32_t byte) {
    const std::uint32_t half = ptx::widen_e4m3(byte).low;
    const float x = __half22float2(*reinterpret_cast<const __half2*>(&half)).x;
    return __byte_perm(__float_as_uint(x), 0, 0x3232);
  }
  __device__ __forceinline__ static std::uint32_t product(std::uint32_t pair, std::uint32_t scale_pair) {
    std::uint32_t both;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(both) : "r"(pair), "r"(scale_pair));
    return both;
  }
};

}  // namespace flashlatent::sm90
