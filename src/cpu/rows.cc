// Conversions of cached rows. Everything is done in fp32 and integers, because targets round some conversions
// in their own ways.
#include "cpu/rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/e4m3_latent.h"
#include "core/element.h"
#include "core/fp8_584.h"
#include "core/fp8_656.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace flashlatent::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using Vector = hn::Vec<Floats>;
using IntVector = hn::Vec<Ints>;

constexpr Floats kFloats;
constexpr Ints kInts;
constexpr std::int32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

HWY_INLINE IntVector ints(std::int32_t x) {
  return hn::Set(kInts, x);
}
HWY_INLINE IntVector bits_of(Vector x) {
  return hn::BitCast(kInts, x);
}
HWY_INLINE Vector float_of(IntVector bits) {
  return hn::BitCast(kFloats, bits);
}
HWY_INLINE int lanes() {
  return static_cast<int>(hn::Lanes(kFloats));
}

/// Unsigned numbers of 8 or 16 bits in 32-bit lanes.
template <class Unsigned>
HWY_INLINE IntVector load(const Unsigned* from) {
  return hn::PromoteTo(kInts, hn::LoadU(hn::Rebind<Unsigned, Ints>(), from));
}
template <class Unsigned>
HWY_INLINE void store(IntVector x, Unsigned* to) {
  const hn::Rebind<Unsigned, Ints> narrow;
  hn::StoreU(hn::DemoteTo(narrow, x), narrow, to);
}

struct Bf16 {
  static HWY_INLINE Vector load(const std::uint16_t* from) {
    return float_of(hn::ShiftLeft<16>(HWY_NAMESPACE::load(from)));
  }
  /// The bits of float_to_bf16().
  static HWY_INLINE void store(Vector x, std::uint16_t* to) {
    const IntVector bits = bits_of(x);
    const IntVector odd = hn::And(hn::ShiftRight<16>(bits), ints(1));
    const IntVector rounded = hn::IfThenElse(hn::RebindMask(kInts, hn::IsNaN(x)), hn::Or(bits, ints(1 << 22)),
                                             hn::Add(hn::Add(bits, ints(0x7FFF)), odd));
    HWY_NAMESPACE::store(hn::And(hn::ShiftRight<16>(rounded), ints(0xFFFF)), to);
  }
};

struct Fp16 {
  static HWY_INLINE Vector load(const std::uint16_t* from) {
    const IntVector half = HWY_NAMESPACE::load(from);
    const IntVector sign = hn::ShiftLeft<16>(hn::And(half, ints(0x8000)));
    const IntVector magnitude = hn::And(half, ints(0x7FFF));
    const IntVector shifted = hn::ShiftLeft<13>(magnitude);
    const IntVector special = hn::Or(shifted, ints(kInfinity));
    const IntVector normal = hn::Add(shifted, ints(112 << 23));
    const IntVector subnormal =
        bits_of(hn::Mul(hn::ConvertTo(kFloats, magnitude), hn::Set(kFloats, 0x1p-24F)));
    IntVector bits = hn::IfThenElse(hn::Lt(magnitude, ints(0x400)), subnormal, normal);
    bits = hn::IfThenElse(hn::Gt(magnitude, ints(0x7BFF)), special, bits);
    return float_of(hn::Or(bits, sign));
  }
  /// The bits of float_to_fp16().
  static HWY_INLINE void store(Vector x, std::uint16_t* to) {
    const IntVector bits = bits_of(x);
    const IntVector sign = hn::And(hn::ShiftRight<16>(bits), ints(0x8000));
    const IntVector magnitude = hn::And(bits, ints(kMagnitude));
    const IntVector odd = hn::And(hn::ShiftRight<13>(magnitude), ints(1));
    const IntVector normal =
        hn::ShiftRight<13>(hn::Sub(hn::Add(hn::Add(magnitude, ints(0xFFF)), odd), ints(112 << 23)));
    const IntVector subnormal =
        hn::Sub(bits_of(hn::Add(float_of(magnitude), hn::Set(kFloats, 0.5F))), ints(0x3F000000));
    IntVector half = hn::IfThenElse(hn::Lt(magnitude, ints(113 << 23)), subnormal, normal);
    // 65,520 and beyond are infinite
    half = hn::IfThenElse(hn::Lt(magnitude, ints(0x477FF000)), half, ints(0x7C00));
    half = hn::IfThenElse(hn::Gt(magnitude, ints(kInfinity)), ints(0x7E00), half);
    HWY_NAMESPACE::store(hn::Or(half, sign), to);
  }
};

/// e4m3::decode().
HWY_INLINE Vector decode(IntVector code) {
  const IntVector magnitude = hn::And(code, ints(0x7F));
  const IntVector normal = hn::Add(hn::ShiftLeft<20>(magnitude), ints(120 << 23));
  // Without fp32 subnormals, which some processors are slow with.
  const IntVector subnormal = bits_of(hn::Mul(hn::ConvertTo(kFloats, magnitude), hn::Set(kFloats, 0x1p-9F)));
  IntVector bits = hn::IfThenElse(hn::Lt(magnitude, ints(8)), subnormal, normal);
  bits = hn::IfThenElse(hn::Eq(magnitude, ints(0x7F)), ints(0x7FC00000), bits);
  return float_of(hn::Or(bits, hn::ShiftLeft<24>(hn::And(code, ints(0x80)))));
}

/// e4m3::encode(scaled), where `scaled` is x in other units. If x is finite and `scaled` is not, the code of
/// 448.
HWY_INLINE IntVector encode_scaled(Vector x, Vector scaled) {
  const IntVector bits = bits_of(scaled);
  const IntVector sign = hn::And(hn::ShiftRight<24>(bits), ints(0x80));
  const IntVector magnitude = hn::And(bits, ints(kMagnitude));
  const IntVector odd = hn::And(hn::ShiftRight<20>(magnitude), ints(1));
  const IntVector normal =
      hn::Sub(hn::ShiftRight<20>(hn::Add(hn::Add(magnitude, ints(0x7FFFF)), odd)), ints(120 << 3));
  const Vector grid = hn::Set(kFloats, 0x1p14F);
  const IntVector subnormal = hn::Sub(bits_of(hn::Add(float_of(magnitude), grid)), bits_of(grid));
  const IntVector code = hn::IfThenElse(hn::Lt(magnitude, ints(121 << 23)), subnormal, normal);
  const auto finite = hn::Lt(hn::And(bits_of(x), ints(kMagnitude)), ints(kInfinity));
  return hn::IfThenElse(finite, hn::Or(sign, hn::Min(code, ints(0x7E))), ints(fp8_656::kNan));
}

HWY_INLINE IntVector encode(Vector x, Vector factor) {
  return encode_scaled(x, hn::Mul(x, factor));
}

/// The largest magnitude among the finite elements of a group.
template <class Element, int kGroup>
float largest(const std::uint16_t* from) {
  const int n = lanes();
  IntVector most = hn::Zero(kInts);
  for (int i = 0; i < kGroup; i += n) {
    const IntVector magnitude = hn::And(bits_of(Element::load(from + i)), ints(kMagnitude));
    most = hn::Max(most, hn::IfThenElseZero(hn::Lt(magnitude, ints(kInfinity)), magnitude));
  }
  return fp8_656::float_of(static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(kInts, most))));
}

/// Applies `f` to whole vectors of `count` elements, and to the rest through buffers.
template <class From, class To, class F>
HWY_INLINE void by_vectors(const From* from, int count, To* to, F f) {
  int i = 0;
  for (; i + lanes() <= count; i += lanes()) f(from + i, to + i);
  if (i >= count) return;
  From tail[16] = {};
  To converted[16];
  std::memcpy(tail, from + i, (count - i) * sizeof(*from));
  f(tail, converted);
  std::memcpy(to + i, converted, (count - i) * sizeof(*to));
}

template <class From, class To>
void convert(const std::uint16_t* from, int count, std::uint16_t* to) {
  by_vectors(from, count, to,
             [](const std::uint16_t* x, std::uint16_t* y) HWY_ATTR { To::store(From::load(x), y); });
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
  const std::uint32_t scale_bits = fp8_656::bits_of(scale);
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

/// Dequantises one group.
template <class To, int kGroup>
HWY_INLINE void dequantise(const std::uint8_t* HWY_RESTRICT codes, float number,
                           std::uint16_t* HWY_RESTRICT row) {
  if (std::is_same_v<To, Bf16> && dequantise_exactly<kGroup>(codes, number, row)) return;
  const Vector scale = hn::Set(kFloats, number);
  for (int i = 0; i < kGroup; i += lanes()) To::store(hn::Mul(decode(load(codes + i)), scale), row + i);
}

/// Converts bf16 elements at any address.
void convert_rope(const std::uint8_t* from, Dtype dtype, std::uint16_t* to) {
  std::uint16_t rope[fp8_656::kRopeDim];
  static_assert(fp8_584::kRopeDim == fp8_656::kRopeDim);
  std::memcpy(rope, from, sizeof(rope));
  convert_any(rope, Dtype::kBF16, fp8_656::kRopeDim, to, dtype);
}

template <class To>
void dequantise_656(const std::uint8_t* token, std::uint16_t* row) {
  for (int group = 0; group < fp8_656::kGroups; ++group) {
    float scale;
    std::memcpy(&scale, token + fp8_656::kScaleOffset + group * sizeof(scale), sizeof(scale));
    const int begin = group * fp8_656::kGroup;
    dequantise<To, fp8_656::kGroup>(token + begin, scale, row + begin);
  }
}

void dequantise_656_any(const std::uint8_t* token, bool rope, Dtype dtype, std::uint16_t* row) {
  dtype == Dtype::kBF16 ? dequantise_656<Bf16>(token, row) : dequantise_656<Fp16>(token, row);
  if (rope) convert_rope(token + fp8_656::kRopeOffset, dtype, row + fp8_656::kLatentDim);
}

template <class To>
void dequantise_584(const std::uint8_t* data, const std::uint8_t* scales, std::uint16_t* row) {
  for (int group = 0; group < fp8_584::kGroups; ++group) {
    const int begin = group * fp8_584::kGroup;
    dequantise<To, fp8_584::kGroup>(data + begin, fp8_584::scale_value(scales[group]), row + begin);
  }
}

void dequantise_584_any(const std::uint8_t* data, const std::uint8_t* scales, Dtype dtype,
                        std::uint16_t* row) {
  dtype == Dtype::kBF16 ? dequantise_584<Bf16>(data, scales, row) : dequantise_584<Fp16>(data, scales, row);
  convert_rope(data + fp8_584::kRopeOffset, dtype, row + fp8_584::kNopeDim);
}

template <class To>
void expand(const std::uint8_t* from, int count, std::uint16_t* to) {
  by_vectors(from, count, to,
             [](const std::uint8_t* x, std::uint16_t* y) HWY_ATTR { To::store(decode(load(x)), y); });
}

void expand_any(const std::uint8_t* from, int count, Dtype dtype, std::uint16_t* to) {
  dtype == Dtype::kBF16 ? expand<Bf16>(from, count, to) : expand<Fp16>(from, count, to);
}

/// Quantises one group; returns the exponent of its scale.
template <class From, int kGroup>
HWY_INLINE int quantise(const std::uint16_t* HWY_RESTRICT from, std::uint8_t* HWY_RESTRICT codes) {
  const int exponent = e4m3::scale_exponent(largest<From, kGroup>(from));
  const Vector factor = hn::Set(kFloats, e4m3::power_of_two(-exponent));
  for (int i = 0; i < kGroup; i += lanes()) store(encode(From::load(from + i), factor), codes + i);
  return exponent;
}

HWY_INLINE float largest_of_query(const std::uint16_t* from, int count) {
  constexpr int kGroup = 64;
  float amax = 0;
  for (int i = 0; i < count; i += kGroup) amax = std::max(amax, largest<Bf16, kGroup>(from + i));
  return amax;
}
HWY_INLINE void round_query_by(float factor, const std::uint16_t* HWY_RESTRICT from, int count,
                               std::uint16_t* HWY_RESTRICT to) {
  const Vector factors = hn::Set(kFloats, factor);
  for (int i = 0; i < count; i += lanes()) Bf16::store(decode(encode(Bf16::load(from + i), factors)), to + i);
}

int round_query(const std::uint16_t* first, int first_count, const std::uint16_t* rope, int rope_count,
                std::uint16_t* to) {
  const float amax = std::max(largest_of_query(first, first_count), largest_of_query(rope, rope_count));
  const int exponent = e4m3_latent::query_exponent(amax);
  const float factor = e4m3::power_of_two(-exponent);
  round_query_by(factor, first, first_count, to);
  round_query_by(factor, rope, rope_count, to + first_count);
  return exponent;
}

template <class To>
void dequantise_scaled(const std::uint8_t* codes, int count, float number, std::uint16_t* row) {
  const Vector scale = hn::Set(kFloats, number);
  by_vectors(codes, count, row, [scale](const std::uint8_t* from, std::uint16_t* to) HWY_ATTR {
    To::store(hn::Mul(decode(load(from)), scale), to);
  });
}
void dequantise_e4m3_any(const std::uint8_t* codes, int count, float scale, Dtype dtype, std::uint16_t* row) {
  dtype == Dtype::kBF16 ? dequantise_scaled<Bf16>(codes, count, scale, row)
                        : dequantise_scaled<Fp16>(codes, count, scale, row);
}

template <class From>
void quantise_scaled(const std::uint16_t* row, int count, float number, std::uint8_t* codes) {
  const Vector scale = hn::Set(kFloats, number);
  by_vectors(row, count, codes, [scale](const std::uint16_t* from, std::uint8_t* to) HWY_ATTR {
    const Vector x = From::load(from);
    store(encode_scaled(x, hn::Div(x, scale)), to);
  });
}
void quantise_e4m3_any(const std::uint16_t* row, Dtype dtype, int count, float scale, std::uint8_t* codes) {
  dtype == Dtype::kBF16 ? quantise_scaled<Bf16>(row, count, scale, codes)
                        : quantise_scaled<Fp16>(row, count, scale, codes);
}

void store_rope(const std::uint16_t* rope, Dtype dtype, std::uint8_t* to) {
  std::uint16_t converted[fp8_656::kRopeDim];
  convert_any(rope, dtype, fp8_656::kRopeDim, converted, Dtype::kBF16);
  std::memcpy(to, converted, sizeof(converted));
}

template <class From>
void quantise_656(const std::uint16_t* latent, std::uint8_t* token) {
  for (int group = 0; group < fp8_656::kGroups; ++group) {
    const int begin = group * fp8_656::kGroup;
    const float scale = fp8_656::power_of_two(quantise<From, fp8_656::kGroup>(latent + begin, token + begin));
    std::memcpy(token + fp8_656::kScaleOffset + group * sizeof(scale), &scale, sizeof(scale));
  }
}

void quantise_656_any(const std::uint16_t* latent, const std::uint16_t* rope, Dtype dtype,
                      std::uint8_t* token) {
  dtype == Dtype::kBF16 ? quantise_656<Bf16>(latent, token) : quantise_656<Fp16>(latent, token);
  store_rope(rope, dtype, token + fp8_656::kRopeOffset);
}

template <class From>
void quantise_584(const std::uint16_t* nope, std::uint8_t* data, std::uint8_t* scales) {
  for (int group = 0; group < fp8_584::kGroups; ++group) {
    const int begin = group * fp8_584::kGroup;
    scales[group] = fp8_584::scale_byte(quantise<From, fp8_584::kGroup>(nope + begin, data + begin));
  }
}

void quantise_584_any(const std::uint16_t* nope, const std::uint16_t* rope, Dtype dtype, std::uint8_t* data,
                      std::uint8_t* scales) {
  dtype == Dtype::kBF16 ? quantise_584<Bf16>(nope, data, scales) : quantise_584<Fp16>(nope, data, scales);
  scales[fp8_584::kGroups] = 0;  // padding
  store_rope(rope, dtype, data + fp8_584::kRopeOffset);
}

}  // namespace flashlatent::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlatent::cpu {

HWY_EXPORT(convert_any);
HWY_EXPORT(dequantise_584_any);
HWY_EXPORT(dequantise_656_any);
HWY_EXPORT(dequantise_e4m3_any);
HWY_EXPORT(expand_any);
HWY_EXPORT(quantise_584_any);
HWY_EXPORT(quantise_656_any);
HWY_EXPORT(quantise_e4m3_any);
HWY_EXPORT(round_query);

void dequantise_656(const std::uint8_t* token, bool rope, Dtype dtype, std::uint16_t* row) {
  HWY_DYNAMIC_DISPATCH(dequantise_656_any)(token, rope, dtype, row);
}

void dequantise_584(const std::uint8_t* data, const std::uint8_t* scales, Dtype dtype, std::uint16_t* row) {
  HWY_DYNAMIC_DISPATCH(dequantise_584_any)(data, scales, dtype, row);
}

void expand_e4m3(const std::uint8_t* from, int count, Dtype dtype, std::uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(expand_any)(from, count, dtype, to);
}

void quantise_656(const std::uint16_t* latent, const std::uint16_t* rope, Dtype dtype, std::uint8_t* token) {
  HWY_DYNAMIC_DISPATCH(quantise_656_any)(latent, rope, dtype, token);
}

void quantise_584(const std::uint16_t* nope, const std::uint16_t* rope, Dtype dtype, std::uint8_t* data,
                  std::uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(quantise_584_any)(nope, rope, dtype, data, scales);
}

void dequantise_e4m3(const std::uint8_t* codes, int count, float scale, Dtype dtype, std::uint16_t* row) {
  HWY_DYNAMIC_DISPATCH(dequantise_e4m3_any)(codes, count, scale, dtype, row);
}

void quantise_e4m3(const std::uint16_t* row, Dtype dtype, int count, float scale, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(quantise_e4m3_any)(row, dtype, count, scale, codes);
}

int round_query(const std::uint16_t* first, int first_count, const std::uint16_t* rope, int rope_count,
                std::uint16_t* to) {
  return HWY_DYNAMIC_DISPATCH(round_query)(first, first_count, rope, rope_count, to);
}

void convert_row(const std::uint16_t* from, Dtype from_dtype, int count, std::uint16_t* to, Dtype to_dtype) {
  HWY_DYNAMIC_DISPATCH(convert_any)(from, from_dtype, count, to, to_dtype);
}

}  // namespace flashlatent::cpu
#endif
