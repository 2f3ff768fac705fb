// Tokens of records as A operands of K Q^T, fp16 in units of the token (math/fp8_units.cuh), from the bytes
// in a stage. A thread has its warp's tokens lane / 4 and lane / 4 + 8, of which it reads 32 of 128 columns;
// chunk i is of columns 128 (i / 2) + 32 (lane % 4) + 16 (i % 2) + {0 ... 15}. Of 4 k, ... 4 k + 3 of these
// sixteen the even ones are the thread's columns 2 (lane % 4) + {0, 1} of product k, the odd ones 8 further
// on: so stored as they are (math/fragment.cuh), neighbouring columns become rows g and g + 8 of V^T.
#pragma once

#include "core/formats/mxfp8_528.h"
#include "core/formats/nvfp4_288.h"
#include "cuda/sm90/kernels/fp8/products.cuh"
#include "cuda/sm90/kernels/fp8/units_584.cuh"

namespace flashlatent::fp8::records {

/// The chunk from which the last half of the columns begins, which comes first.
inline constexpr int kLastHalf = mxfp8_528::kDim / 64 / 2;

/// The exponents, as in an fp32, of the units of a thread's two tokens.
struct Units {
  std::uint32_t low, high;
};

/// Some bits of each load: its words come together.
template <int kCount>
__device__ __forceinline__ std::uint32_t any_of(const KeyBytes (&bytes)[kCount]) {
  std::uint32_t any = 0;
#pragma unroll
  for (const KeyBytes& b : bytes) {
    any ^= b.low.x ^ b.high.x;
  }
  return any;
}

/// The first or the second of two fp16, twice. With times() it takes no instruction.
__device__ __forceinline__ std::uint32_t twice(std::uint32_t pair, bool second) {
  std::uint32_t both;
  if (second) {
    asm("{\n.reg .b16 first, second;\nmov.b32 {first, second}, %1;\nmov.b32 %0, {second, second};\n}"
        : "=r"(both)
        : "r"(pair));
  } else {
    asm("{\n.reg .b16 first, second;\nmov.b32 {first, second}, %1;\nmov.b32 %0, {first, first};\n}"
        : "=r"(both)
        : "r"(pair));
  }
  return both;
}

/// mxfp8_528. A lane's 32 columns have one scale. Scales are split into a unit and ratios (units_584.cuh);
/// zeroed caches and scales of any size take the way of all, but for tokens that are odd. kWhole: a stage
/// has whole tokens; else a first one has the last half of a token's columns and its scales, a second one the
/// other half.
template <bool kWhole>
class Mxfp8Keys {
 public:
  static constexpr int kStages = kWhole ? 1 : 2, kStageColumns = mxfp8_528::kDim / kStages;
  static constexpr int kPitch = kStageColumns + mxfp8_528::kScaleBytes;
  static_assert(kPitch / 16 % 2 == 1);  // groups of banks: no conflicts

  /// `token`: the address of the thread's first one.
  __device__ __forceinline__ Mxfp8Keys(std::uint32_t token, int quad_lane)
      : low_(scales_at(token, quad_lane)), high_(scales_at(token + 8 * kPitch, quad_lane)) {}

  /// Finds units and ratios, when the first stage has been read. By all lanes of a warp. `second()`: the
  /// address of the thread's first token in the second stage, once this has come.
  template <class Second>
  __device__ __forceinline__ void settle(int quad_lane, Second second) {
    const auto larger = [](auto a, auto b) { return __vmaxu2(a, b); };
    const auto smaller = [](auto a, auto b) { return __vminu2(a, b); };
    const std::uint32_t largest = over_quad(pairs_of(low_, high_, larger), larger);
    const std::uint32_t least = over_quad(pairs_of(low_, high_, smaller), smaller);
    largest_[0] = largest & 0xFFFF, largest_[1] = largest >> 16;
    const bool odd =
        __any_sync(0xffffffff, is_odd(largest_[0], least & 0xFFFF) || is_odd(largest_[1], least >> 16));
    if (odd) [[unlikely]]
      bound_values([&] { return second() + quad_lane * 32; });
    const Units unit = units();
    const std::uint32_t zero[2] = {(unit.low - UnitScales::kHalfBias) * 0x10001U,
                                   (unit.high - UnitScales::kHalfBias) * 0x10001U};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ratio_[0][i] = ratios(pair_of(low_, i), zero[0]);
      ratio_[1][i] = ratios(pair_of(high_, i), zero[1]);
    }
    if (odd) [[unlikely]] {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ratio_[0][i] = odd_ratios(pair_of(low_, i), zero[0]);
        ratio_[1][i] = odd_ratios(pair_of(high_, i), zero[1]);
      }
    }
  }

  __device__ __forceinline__ Units units() const {
    return {unit(largest_[0]), unit(largest_[1])};
  }
  /// Reads all of a stage. `token`: the address of the thread's first one.
  __device__ __forceinline__ void read(std::uint32_t token, int quad_lane) {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const int i = (n + kLastHalf) % kHeld;  // as they are needed
      bytes_[i] = chunk_at(token + quad_lane * 32, i);
    }
  }
  /// Anything that depends on all that has been read.
  __device__ __forceinline__ std::uint32_t read_so_far() const {
    return low_ ^ high_ ^ any_of(bytes_);
  }
  /// Chunk i, which has been read.
  __device__ __forceinline__ void widen(Operands& a, int i) const {
    widen_token<0>(a, bytes_[i % kHeld].low, ratio_of(0, i / 2));
    widen_token<1>(a, bytes_[i % kHeld].high, ratio_of(1, i / 2));
  }

 private:
  static constexpr int kHeld = kStageColumns / 64;  // chunks in registers

  /// Chunk i of a stage. `columns`: the address of this lane's first ones in it.
  __device__ __forceinline__ static KeyBytes chunk_at(std::uint32_t columns, int i) {
    return KeyBytes::at<kPitch>(columns + i / 2 * 128 + i % 2 * 16);
  }
  /// The scales of this lane's columns: a byte each of four.
  __device__ __forceinline__ static std::uint32_t scales_at(std::uint32_t token, int quad_lane) {
    const uint4 all = ptx::load_shared_16_bytes(token + kStageColumns);
    const std::uint32_t two = quad_lane | (4 + quad_lane) << 4;
    return __byte_perm(__byte_perm(all.x, all.y, two), __byte_perm(all.z, all.w, two), 0x5410);
  }
  /// Both tokens' scales combined, in 16 bits each.
  template <class Combine>
  __device__ __forceinline__ static std::uint32_t pairs_of(std::uint32_t low, std::uint32_t high,
                                                           Combine combine) {
    const std::uint32_t a = combine(pair_of(low, 0), pair_of(low, 1)),
                        b = combine(pair_of(high, 0), pair_of(high, 1));
    return combine(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
  }
  template <class Combine>
  __device__ __forceinline__ static std::uint32_t over_quad(std::uint32_t both, Combine combine) {
    both = combine(both, __shfl_xor_sync(0xffffffff, both, 1));
    return combine(both, __shfl_xor_sync(0xffffffff, both, 2));
  }

  __device__ __forceinline__ static bool is_odd(std::uint32_t largest, std::uint32_t least) {
    return largest > ::max(least + UnitScales::kSpread, UnitScales::kLeast) || largest > UnitScales::kMost;
  }
  __device__ __forceinline__ static std::uint32_t unit(std::uint32_t largest) {
    return ::max(largest, UnitScales::kLeast) - UnitScales::kLargestRatio;
  }

  /// As the function of units_584.cuh, of this lane's four groups and then of the quad's. `second()`: the
  /// address of this lane's columns in the second stage, if there is one.
  template <class Second>
  __device__ __forceinline__ void bound_values(Second second) {
    constexpr std::uint32_t kAll = 15;  // the largest exponent of codes
    std::uint32_t bound = 0;            // of both, + kAll
    const std::uint32_t elsewhere = kWhole ? 0 : second();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int chunk = 2 * i;
      bound = __vmaxu2(bound, kWhole || chunk >= kHeld
                                  ? bound_of(i, bytes_[chunk % kHeld], bytes_[chunk % kHeld + 1])
                                  : bound_of(i, chunk_at(elsewhere, chunk), chunk_at(elsewhere, chunk + 1)));
    }
    bound = over_quad(bound, [](auto a, auto b) { return __vmaxu2(a, b); });
    largest_[0] = ::max(bound & 0xFFFF, kAll) - kAll;
    largest_[1] = ::max(bound >> 16, kAll) - kAll;
  }
  /// Of group i, whose codes these are.
  __device__ __forceinline__ std::uint32_t bound_of(int i, const KeyBytes& first,
                                                    const KeyBytes& second) const {
    constexpr std::uint32_t kFew = 6;  // an exponent of codes
    const auto bits_of = [](const uint4& x, const uint4& y) {
      return (x.x | x.y | x.z | x.w | y.x | y.y | y.z | y.w) & 0x7F7F7F7F;
    };
    const std::uint32_t a = bits_of(first.low, second.low), b = bits_of(first.high, second.high);
    std::uint32_t bits = __byte_perm(a, b, 0x5410) | __byte_perm(a, b, 0x7632);
    bits = (bits | bits >> 8) & 0x7F007F;
    const std::uint32_t exponents = __vmaxu2(bits >> 3 & 0x0F000F, kFew * 0x10001);
    const std::uint32_t scales = (low_ >> 8 * i & 0xFF) | (high_ >> 8 * i & 0xFF) << 16;
    return __vminu2(scales + exponents, bits << 9);  // a group of zeros has none
  }

  /// Scales i and i + 2.
  __device__ __forceinline__ static std::uint32_t pair_of(std::uint32_t scales, int i) {
    return scales >> 8 * i & 0x00FF00FF;
  }
  /// Two scales over their token's unit, as fp16. `zero`: the scale whose ratio has the exponent 0, twice.
  __device__ __forceinline__ static std::uint32_t ratios(std::uint32_t scales, std::uint32_t zero) {
    return (__vmaxu2(scales, zero) - zero) << 10;
  }
  /// The same of tokens that may be odd: up to 2^15 (groups of zeros may have more), and down to fp16's
  /// subnormals.
  __device__ __forceinline__ static std::uint32_t odd_ratios(std::uint32_t scales, std::uint32_t zero) {
    const std::uint32_t nan = __vcmpeq2(scales, kNanScale * 0x10001) & 0x7E007E00;
    const std::uint32_t least = __vminu2(scales, zero + 30 * 0x10001);
    const std::uint32_t normal = __vmaxu2(least, zero + 0x10001);
    const std::uint32_t missing = __vminu2(normal - least, 14 * 0x10001);
    return nan | sm90::times((normal - zero) << 10, (UnitScales::kHalfBias * 0x10001 - missing) << 10);
  }
  /// Of group i, twice.
  __device__ __forceinline__ std::uint32_t ratio_of(int token, int i) const {
    return twice(ratio_[token][i % 2], i / 2 != 0);
  }

  template <int kHigh>
  __device__ __forceinline__ static void widen_token(Operands& a, const uint4& bytes, std::uint32_t ratio) {
    const std::uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const ptx::HalfPairs columns = ptx::widen_e4m3(__byte_perm(words[k], 0, 0x3120));
      a[k][kHigh] = sm90::times(columns.low, ratio);
      a[k][2 + kHigh] = sm90::times(columns.high, ratio);
    }
  }

  const std::uint32_t low_, high_;  // scales
  std::uint32_t largest_[2];        // scale; for odd tokens a bound of their values over 448, as a scale
  std::uint32_t ratio_[2][2];       // of groups i and i + 2
  KeyBytes bytes_[kHeld];
};

/// nvfp4_288. An element is exact in e4m3, times 2^-6: its upper two bits but the sign are the lower two of
/// an exponent. An element times its scale is exact in fp16, so all tokens have one unit.
class Nvfp4Keys {
 public:
  static constexpr int kStages = 1;
  static constexpr int kPitch = nvfp4_288::kTokenBytes + 32;  // 20 groups of banks: no conflicts

  __device__ __forceinline__ Nvfp4Keys(std::uint32_t token, int quad_lane) {
    find_scales(scale_[0], token, quad_lane);
    find_scales(scale_[1], token + 8 * kPitch, quad_lane);
  }

  template <class Second>
  __device__ __forceinline__ static void settle(int, Second) {}
  __device__ __forceinline__ static Units units() { return {kUnit, kUnit}; }

  __device__ __forceinline__ void read(std::uint32_t token, int quad_lane) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int i = (n + kLastHalf / 2) % 4;  // as they are needed
      bytes_[i] = KeyBytes::at<kPitch>(token + quad_lane * 16 + i * 64);
    }
  }
  __device__ __forceinline__ std::uint32_t read_so_far() const {
    std::uint32_t any = any_of(bytes_);
#pragma unroll
    for (int i = 0; i < 4; ++i) any ^= scale_[0][i] ^ scale_[1][i];
    return any;
  }
  __device__ __forceinline__ void widen(Operands& a, int i) const {
    const uint4 &low = bytes_[i / 2].low, &high = bytes_[i / 2].high;
    widen_token<0>(a, i % 2 == 0 ? low.x : low.z, i % 2 == 0 ? low.y : low.w, scale_of(0, i));
    widen_token<1>(a, i % 2 == 0 ? high.x : high.z, i % 2 == 0 ? high.y : high.w, scale_of(1, i));
  }

 private:
  /// 2^-6 of elements and 2^7 of scales, of which the largest is then 57344.
  static constexpr std::uint32_t kUnit = 127 - 1, kScaleFactor = 0x58005800;

  /// A lane's 32 columns have two scales, in one word.
  __device__ __forceinline__ static void find_scales(std::uint32_t (&scale)[4], std::uint32_t token,
                                                     int quad_lane) {
    const uint4 a = ptx::load_shared_16_bytes(token + nvfp4_288::kCodeBytes),
                b = ptx::load_shared_16_bytes(token + nvfp4_288::kCodeBytes + 16);
    const std::uint32_t two = 2 * quad_lane | (2 * quad_lane + 1) << 4;
    const auto find = [&](std::uint32_t first, std::uint32_t second) {
      return sm90::times(ptx::widen_e4m3(__byte_perm(first, second, two)).low, kScaleFactor);
    };
    scale[0] = find(a.x, a.y), scale[1] = find(a.z, a.w);
    scale[2] = find(b.x, b.y), scale[3] = find(b.z, b.w);
  }
  __device__ __forceinline__ std::uint32_t scale_of(int token, int i) const {
    return twice(scale_[token][i / 2], i % 2 != 0);
  }

  /// Sixteen elements.
  template <int kHigh>
  __device__ __forceinline__ static void widen_token(Operands& a, std::uint32_t first, std::uint32_t second,
                                                     std::uint32_t scale) {
    const std::uint32_t words[2] = {first, second};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t w = words[i];
      const ptx::HalfPairs even = ptx::widen_e4m3((w << 2 & 0x1C1C1C1C) | (w << 4 & 0x80808080));
      const ptx::HalfPairs odd = ptx::widen_e4m3((w >> 2 & 0x1C1C1C1C) | (w & 0x80808080));
      a[2 * i][kHigh] = sm90::times(even.low, scale);
      a[2 * i + 1][kHigh] = sm90::times(even.high, scale);
      a[2 * i][2 + kHigh] = sm90::times(odd.low, scale);
      a[2 * i + 1][2 + kHigh] = sm90::times(odd.high, scale);
    }
  }

  std::uint32_t scale_[2][4];
  KeyBytes bytes_[4];
};

}  // namespace flashlatent::fp8::records
