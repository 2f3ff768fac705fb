// From elements to cached rows, and to queries of e4m3.
#include "cpu/rows.h"

#include <algorithm>
#include <type_traits>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantise_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/row_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlatent::cpu::HWY_NAMESPACE {

/// Quantises one group to e4m3; returns the exponent of its scale.
template <class From, int kGroup>
HWY_INLINE int quantise(const typename From::Number* HWY_RESTRICT from, int least,
                        std::uint8_t* HWY_RESTRICT codes) {
  const int exponent = e4m3::scale_exponent(largest<From, kGroup>(from), least);
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

template <class From>
void quantise_scaled(const typename From::Number* row, int count, float number, std::uint8_t* codes) {
  const Vector scale = hn::Set(kFloats, number);
  by_vectors(row, count, codes, [scale](const typename From::Number* from, std::uint8_t* to) HWY_ATTR {
    const Vector x = From::load(from);
    store(encode_scaled(x, hn::Div(x, scale)), to);
  });
}
void quantise_e4m3_any(const std::uint16_t* row, Dtype dtype, int count, float scale, std::uint8_t* codes) {
  dtype == Dtype::kBF16 ? quantise_scaled<Bf16>(row, count, scale, codes)
                        : quantise_scaled<Fp16>(row, count, scale, codes);
}

void quantise_e4m3_fp32(const float* row, int count, float scale, std::uint8_t* codes) {
  quantise_scaled<Fp32>(row, count, scale, codes);
}

template <class From, int kGroup>
void quantise_groups(const LatentFormat& format, int least, const typename From::Number* from,
                     TokenBytes token) {
  for (int group = 0; group < format.groups(); ++group) {
    const int begin = group * kGroup,
              exponent = quantise<From, kGroup>(from + begin, least, token.data + begin);
    if (format.scales == ScaleKind::kUe8m0) {
      token.scales[group] = ue8m0::scale_byte(exponent);
    } else {
      const float scale = e4m3::power_of_two(exponent);
      std::memcpy(token.scales + group * sizeof(scale), &scale, sizeof(scale));
    }
  }
}

/// e2m1::encode() of x / scale.
HWY_INLINE IntVector encode_e2m1(Vector x, Vector scale) {
  const IntVector bits = bits_of(hn::Div(x, scale));
  const Vector magnitude = float_of(hn::And(bits, ints(kMagnitude)));
  IntVector code = hn::Zero(kInts);
  const auto count = [&](auto mask) HWY_ATTR {
    code = hn::Add(code, hn::IfThenElseZero(hn::RebindMask(kInts, mask), ints(1)));
  };
  const auto number = [](float bound) HWY_ATTR { return hn::Set(kFloats, bound); };
  count(hn::Gt(magnitude, number(0.25F)));
  count(hn::Ge(magnitude, number(0.75F)));
  count(hn::Gt(magnitude, number(1.25F)));
  count(hn::Ge(magnitude, number(1.75F)));
  count(hn::Gt(magnitude, number(2.5F)));
  count(hn::Ge(magnitude, number(3.5F)));
  count(hn::Gt(magnitude, number(5.0F)));
  const IntVector sign = hn::And(hn::ShiftRight<28>(bits), ints(8));
  return hn::IfThenElse(hn::RebindMask(kInts, hn::IsNaN(x)), hn::Zero(kInts), hn::Or(sign, code));
}

template <class From>
void quantise_e2m1(const LatentFormat& format, const typename From::Number* from, TokenBytes token) {
  constexpr int kGroup = nvfp4_288::kGroup;
  for (int group = 0; group < format.groups(); ++group) {
    const typename From::Number* x = from + group * kGroup;
    token.scales[group] = e2m1::scale_byte(largest<From, kGroup>(x));
    const Vector scale = hn::Set(kFloats, e4m3::decode(token.scales[group]));
    std::uint8_t codes[kGroup];
    for (int i = 0; i < kGroup; i += lanes()) store(encode_e2m1(From::load(x + i), scale), codes + i);
    for (int i = 0; i < kGroup / 2; ++i) {
      token.data[group * kGroup / 2 + i] = static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
  }
}

template <class From>
void quantise_all(const LatentFormat& format, int least, const typename From::Number* scaled,
                  const typename From::Number* rope, TokenBytes token) {
  if (format.elements == Elements::kE2m1) {
    quantise_e2m1<From>(format, scaled, token);
  } else if (format.group == 32) {
    quantise_groups<From, 32>(format, least, scaled, token);
  } else if (format.group == 64) {
    quantise_groups<From, 64>(format, least, scaled, token);
  } else {
    quantise_groups<From, 128>(format, least, scaled, token);
  }
  for (int i = format.groups() * format.bytes_a_scale(); i < format.scale_bytes; ++i) token.scales[i] = 0;
  if (format.rope_dim == 0) return;
  std::uint16_t converted[kMostRope];
  if constexpr (std::is_same_v<From, Bf16>) {
    std::memcpy(converted, rope, format.rope_dim * sizeof(*converted));
  } else {
    convert<From, Bf16>(rope, format.rope_dim, converted);
  }
  std::memcpy(token.data + format.rope_offset, converted, format.rope_dim * sizeof(*converted));
}

void quantise_token_any(const LatentFormat& format, int least, const std::uint16_t* scaled,
                        const std::uint16_t* rope, Dtype dtype, TokenBytes token) {
  dtype == Dtype::kBF16 ? quantise_all<Bf16>(format, least, scaled, rope, token)
                        : quantise_all<Fp16>(format, least, scaled, rope, token);
}
void quantise_token_fp32(const LatentFormat& format, int least, const float* row, TokenBytes token) {
  quantise_all<Fp32>(format, least, row, row + format.scaled_dim(), token);
}

}  // namespace flashlatent::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlatent::cpu {

HWY_EXPORT(quantise_e4m3_any);
HWY_EXPORT(quantise_e4m3_fp32);
HWY_EXPORT(quantise_token_any);
HWY_EXPORT(quantise_token_fp32);
HWY_EXPORT(round_query);

void quantise_token(const LatentFormat& format, int least_exponent, const std::uint16_t* scaled,
                    const std::uint16_t* rope, Dtype dtype, TokenBytes token) {
  HWY_DYNAMIC_DISPATCH(quantise_token_any)(format, least_exponent, scaled, rope, dtype, token);
}

void quantise_token(const LatentFormat& format, int least_exponent, const float* row, TokenBytes token) {
  HWY_DYNAMIC_DISPATCH(quantise_token_fp32)(format, least_exponent, row, token);
}

void quantise_e4m3(const std::uint16_t* row, Dtype dtype, int count, float scale, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(quantise_e4m3_any)(row, dtype, count, scale, codes);
}

void quantise_e4m3(const float* row, int count, float scale, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(quantise_e4m3_fp32)(row, count, scale, codes);
}

int round_query(const std::uint16_t* first, int first_count, const std::uint16_t* rope, int rope_count,
                std::uint16_t* to) {
  return HWY_DYNAMIC_DISPATCH(round_query)(first, first_count, rope, rope_count, to);
}

}  // namespace flashlatent::cpu
#endif
