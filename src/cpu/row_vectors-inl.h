// Vectors of elements of rows, in fp32 and integers, because targets round some conversions in their own
// ways; compiled for each SIMD target.
#if defined(FLASHLATENT_CPU_ROW_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLATENT_CPU_ROW_VECTORS_INL_H_
#undef FLASHLATENT_CPU_ROW_VECTORS_INL_H_
#else
#define FLASHLATENT_CPU_ROW_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "core/element.h"
#include "core/formats/formats.h"

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

struct Fp32 {
  using Number = float;
  static HWY_INLINE Vector load(const float* from) { return hn::LoadU(kFloats, from); }
  static HWY_INLINE void store(Vector x, float* to) { hn::StoreU(x, kFloats, to); }
};

struct Bf16 {
  using Number = std::uint16_t;
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
  using Number = std::uint16_t;
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
  return hn::IfThenElse(finite, hn::Or(sign, hn::Min(code, ints(0x7E))), ints(e4m3::kNan));
}

HWY_INLINE IntVector encode(Vector x, Vector factor) {
  return encode_scaled(x, hn::Mul(x, factor));
}

/// The largest magnitude among the finite elements of a group.
template <class Element, int kGroup>
float largest(const typename Element::Number* from) {
  const int n = lanes();
  IntVector most = hn::Zero(kInts);
  for (int i = 0; i < kGroup; i += n) {
    const IntVector magnitude = hn::And(bits_of(Element::load(from + i)), ints(kMagnitude));
    most = hn::Max(most, hn::IfThenElseZero(hn::Lt(magnitude, ints(kInfinity)), magnitude));
  }
  return e4m3::float_of(static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(kInts, most))));
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
void convert(const typename From::Number* from, int count, typename To::Number* to) {
  by_vectors(from, count, to, [](const typename From::Number* x, typename To::Number* y) HWY_ATTR {
    To::store(From::load(x), y);
  });
}

/// The most elements of a RoPE part that is bf16.
constexpr int kMostRope = 64;

}  // namespace flashlatent::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
