// From cached rows to elements.
#include "cpu/rows.h"

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/dequantise_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/row_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlatent::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // has no table lookup of bytes
template <int kGroup>
HWY_INLINE bool dequantise_exactly(const std::uint8_t*, float, std::uint16_t*) {
  return false;
}
#else
/// Dequantises a group to bf16 with 16-bit integers, a quarter of the work. Only where nothing is rounded:
/// the scale is a power of two that keeps all elements normal, and no element is NaN. Otherwise returns
/// false.
template <int kGroup>
HWY_INLINE bool dequantise_exactly(const std::uint8_t* HWY_RESTRICT codes, float scale,
                                   std::uint16_t* HWY_RESTRICT row) {
  const std::uint32_t scale_bits = e4m3::bits_of(scale);
  const int exponent = static_cast<int>(scale_bits >> 23) - 127;
  if ((scale_bits & 0x7FFFFFU) != 0 || exponent < -117 || exponent > 119) return false;
  const hn::Repartition<std::uint16_t, Floats> words;
  const hn::Repartition<std::uint8_t, Floats> bytes;
  const hn::Rebind<std::uint8_t, decltype(words)> narrow;
  const auto word = [&](int x) HWY_ATTR { return hn::Set(words, static_cast<std::uint16_t>(x)); };
  // Subnormals by a table: 1, 2 to 3 and 4 to 7 times 2^-9 have different exponents.
  HWY_ALIGN constexpr std::uint16_t kFirst[8] = {0, 0, 128, 192, 256, 288, 320, 352};
  HWY_ALIGN constexpr std::uint16_t kNonzero[8] = {0, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF};
  const auto table = hn::And(hn::Add(hn::LoadDup128(words, kFirst), word((118 + exponent) << 7)),
                             hn::LoadDup128(words, kNonzero));
  const auto bias = word((120 + exponent) << 7);
  auto most = hn::Zero(words);
  for (int i = 0; i < kGroup; i += static_cast<int>(hn::Lanes(words))) {
    const auto code = hn::PromoteTo(words, hn::LoadU(narrow, codes + i));
    const auto magnitude = hn::And(code, word(0x7F));
    most = hn::Max(most, magnitude);
    const auto normal = hn::Add(hn::ShiftLeft<4>(magnitude), bias);
    // Indices of bytes 2 m and 2 m + 1 of the table.
    const auto at = hn::Add(hn::Mul(hn::And(code, word(7)), word(0x0202)), word(0x0100));
    const auto subnormal =
        hn::BitCast(words, hn::TableLookupBytes(hn::BitCast(bytes, table), hn::BitCast(bytes, at)));
    const auto value = hn::IfThenElse(hn::Lt(magnitude, word(8)), subnormal, normal);
    hn::StoreU(hn::Or(value, hn::ShiftLeft<8>(hn::And(code, word(0x80)))), words, row + i);
  }
  return hn::AllTrue(words, hn::Lt(most, word(0x7F)));
}
#endif

/// Dequantises one group of e4m3.
template <class To, int kGroup>
HWY_INLINE void dequantise(const std::uint8_t* HWY_RESTRICT codes, float number,
                           typename To::Number* HWY_RESTRICT row) {
  if constexpr (std::is_same_v<To, Bf16> && kGroup >= 32) {  // the most words of a vector
    if (dequantise_exactly<kGroup>(codes, number, row)) return;
  }
  const Vector scale = hn::Set(kFloats, number);
  for (int i = 0; i < kGroup; i += lanes()) To::store(hn::Mul(decode(load(codes + i)), scale), row + i);
}

/// A scale of a token's scales.
HWY_INLINE float scale_at(ScaleKind kind, const std::uint8_t* scales, int group) {
  if (kind == ScaleKind::kUe8m0) return ue8m0::scale_value(scales[group]);
  if (kind == ScaleKind::kE4m3) return e4m3::decode(scales[group]);
  float scale;
  std::memcpy(&scale, scales + group * sizeof(scale), sizeof(scale));
  return scale;
}

template <class To, int kGroup>
void dequantise_groups(const LatentFormat& format, ConstTokenBytes token, typename To::Number* row) {
  for (int group = 0; group < format.groups(); ++group) {
    const int begin = group * kGroup;
    dequantise<To, kGroup>(token.data + begin, scale_at(format.scales, token.scales, group), row + begin);
  }
}

/// e2m1 as e4m3, which has all numbers of e2m1.
constexpr std::uint8_t kE4m3OfE2m1[16] = {0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C,
                                          0x80, 0xB0, 0xB8, 0xBC, 0xC0, 0xC4, 0xC8, 0xCC};

/// 32 codes of e2m1 to e4m3.
HWY_INLINE void widen_e2m1(const std::uint8_t* HWY_RESTRICT from, std::uint8_t* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 16; ++i) {
    to[2 * i] = kE4m3OfE2m1[from[i] & 0xF];
    to[2 * i + 1] = kE4m3OfE2m1[from[i] >> 4];
  }
#else
  const hn::FixedTag<std::uint8_t, 16> bytes;
  const auto table = hn::LoadU(bytes, kE4m3OfE2m1);
  const auto codes = hn::LoadU(bytes, from);
  const auto low = hn::TableLookupBytes(table, hn::And(codes, hn::Set(bytes, 0xF)));
  const auto high = hn::TableLookupBytes(table, hn::ShiftRight<4>(codes));
  hn::StoreU(hn::InterleaveLower(bytes, low, high), bytes, to);
  hn::StoreU(hn::InterleaveUpper(bytes, low, high), bytes, to + 16);
#endif
}

template <class To>
void dequantise_e2m1(const LatentFormat& format, ConstTokenBytes token, typename To::Number* row) {
  constexpr int kGroup = nvfp4_288::kGroup;
  for (int group = 0; group < format.groups(); group += 2) {
    std::uint8_t codes[2 * kGroup];
    widen_e2m1(token.data + group * kGroup / 2, codes);
    for (int i = 0; i < 2; ++i) {
      dequantise<To, kGroup>(codes + i * kGroup, scale_at(format.scales, token.scales, group + i),
                             row + (group + i) * kGroup);
    }
  }
}

/// Do dequantise_scaled_part() and quantise_all() know the format's groups and scales?
constexpr bool is_known(const LatentFormat& format) {
  const int group = format.group;
  const ScaleKind scales = format.scales;
  const bool known = format.elements == Elements::kE2m1
                         ? group == nvfp4_288::kGroup && scales == ScaleKind::kE4m3
                         : (group == 32 || group == 64 || group == 128) &&
                               (scales == ScaleKind::kFp32 || scales == ScaleKind::kUe8m0);
  return !format.is_record() || (known && format.rope_dim <= kMostRope);
}
static_assert(std::all_of(std::begin(kFormats), std::end(kFormats),
                          [](const LatentFormat* format) { return is_known(*format); }));

/// Elements with scales.
template <class To>
void dequantise_scaled_part(const LatentFormat& format, ConstTokenBytes token, typename To::Number* row) {
  if (format.elements == Elements::kE2m1) return dequantise_e2m1<To>(format, token, row);
  switch (format.group) {
    case 32:
      return dequantise_groups<To, 32>(format, token, row);
    case 64:
      return dequantise_groups<To, 64>(format, token, row);
    default:
      return dequantise_groups<To, 128>(format, token, row);
  }
}

/// Converts bf16 elements at any address.
template <class To>
void convert_rope(const std::uint8_t* from, int count, typename To::Number* to) {
  std::uint16_t rope[kMostRope];
  std::memcpy(rope, from, count * sizeof(*rope));
  if constexpr (std::is_same_v<To, Bf16>) {
    std::memcpy(to, rope, count * sizeof(*rope));
  } else {
    convert<Bf16, To>(rope, count, to);
  }
}

template <class To>
void dequantise_all(const LatentFormat& format, ConstTokenBytes token, bool rope, typename To::Number* row) {
  dequantise_scaled_part<To>(format, token, row);
  if (rope && format.rope_dim > 0) {
    convert_rope<To>(token.data + format.rope_offset, format.rope_dim, row + format.scaled_dim());
  }
}

void dequantise_token_any(const LatentFormat& format, ConstTokenBytes token, bool rope, Dtype dtype,
                          std::uint16_t* row) {
  dtype == Dtype::kBF16 ? dequantise_all<Bf16>(format, token, rope, row)
                        : dequantise_all<Fp16>(format, token, rope, row);
}
void dequantise_token_fp32(const LatentFormat& format, ConstTokenBytes token, float* row) {
  dequantise_all<Fp32>(format, token, true, row);
}

template <class To>
void expand(const std::uint8_t* from, int count, std::uint16_t* to) {
  by_vectors(from, count, to,
             [](const std::uint8_t* x, std::uint16_t* y) HWY_ATTR { To::store(decode(load(x)), y); });
}

void expand_any(const std::uint8_t* from, int count, Dtype dtype, std::uint16_t* to) {
  dtype == Dtype::kBF16 ? expand<Bf16>(from, count, to) : expand<Fp16>(from, count, to);
}

template <class To>
void dequantise_scaled(const std::uint8_t* codes, int count, float number, typename To::Number* row) {
  const Vector scale = hn::Set(kFloats, number);
  by_vectors(codes, count, row, [scale](const std::uint8_t* from, typename To::Number* to) HWY_ATTR {
    To::store(hn::Mul(decode(load(from)), scale), to);
  });
}
void dequantise_e4m3_any(const std::uint8_t* codes, int count, float scale, Dtype dtype, std::uint16_t* row) {
  dtype == Dtype::kBF16 ? dequantise_scaled<Bf16>(codes, count, scale, row)
                        : dequantise_scaled<Fp16>(codes, count, scale, row);
}
void dequantise_e4m3_fp32(const std::uint8_t* codes, int count, float scale, float* row) {
  dequantise_scaled<Fp32>(codes, count, scale, row);
}

void convert_any(const std::uint16_t* from, Dtype from_dtype, int count, std::uint16_t* to, Dtype to_dtype) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, count * sizeof(*to));
  } else if (from_dtype == Dtype::kBF16) {
    convert<Bf16, Fp16>(from, count, to);
  } else {
    convert<Fp16, Bf16>(from, count, to);
  }
}

}  // namespace flashlatent::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlatent::cpu {

HWY_EXPORT(convert_any);
HWY_EXPORT(dequantise_e4m3_any);
HWY_EXPORT(dequantise_e4m3_fp32);
HWY_EXPORT(dequantise_token_any);
HWY_EXPORT(dequantise_token_fp32);
HWY_EXPORT(expand_any);

void dequantise_token(const LatentFormat& format, ConstTokenBytes token, bool rope, Dtype dtype,
                      std::uint16_t* row) {
  HWY_DYNAMIC_DISPATCH(dequantise_token_any)(format, token, rope, dtype, row);
}

void dequantise_token(const LatentFormat& format, ConstTokenBytes token, float* row) {
  HWY_DYNAMIC_DISPATCH(dequantise_token_fp32)(format, token, row);
}

void dequantise_e4m3(const std::uint8_t* codes, int count, float scale, Dtype dtype, std::uint16_t* row) {
  HWY_DYNAMIC_DISPATCH(dequantise_e4m3_any)(codes, count, scale, dtype, row);
}

void dequantise_e4m3(const std::uint8_t* codes, int count, float scale, float* row) {
  HWY_DYNAMIC_DISPATCH(dequantise_e4m3_fp32)(codes, count, scale, row);
}

void expand_e4m3(const std::uint8_t* from, int count, Dtype dtype, std::uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(expand_any)(from, count, dtype, to);
}

void convert_row(const std::uint16_t* from, Dtype from_dtype, int count, std::uint16_t* to, Dtype to_dtype) {
  HWY_DYNAMIC_DISPATCH(convert_any)(from, from_dtype, count, to, to_dtype);
}

}  // namespace flashlatent::cpu
#endif
