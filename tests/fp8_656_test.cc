// The fp8_656 format's numbers against a slow definition that shares nothing with them.
#include "core/formats/fp8_656.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/element.h"

namespace flashlatent::fp8_656 {
namespace {

/// The magnitude of a code below 0x7F: 4 bits of exponent with bias 7, 3 of mantissa, subnormals at exponent
/// 0.
double magnitude_of(int code) {
  const int exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

/// The nearest of the 127 magnitudes, of two equally near the one whose code is even.
int nearest(double magnitude) {
  int best = 0;
  for (int code = 1; code < 0x7F; ++code) {
    const double distance = std::abs(magnitude_of(code) - magnitude);
    const double least = std::abs(magnitude_of(best) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best;
}

void expect_encoded(float x) {
  const int sign = std::signbit(x) ? 0x80 : 0;
  const int expected = std::isfinite(x) ? sign | nearest(std::abs(double{x})) : 0x7F;
  ASSERT_EQ(encode(x), expected) << x;
}

TEST(Fp8, EveryCodeIsDecoded) {
  for (int code = 0; code < 256; ++code) {
    const float x = decode(static_cast<std::uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(x)) << code;
      continue;
    }
    EXPECT_EQ(x, (code < 0x80 ? 1 : -1) * magnitude_of(code & 0x7F)) << code;
    EXPECT_EQ(std::signbit(x), code >= 0x80) << code;
    EXPECT_EQ(encode(x), code);
  }
  EXPECT_EQ(decode(0x7E), kLargest);
}

TEST(Fp8, EveryBf16IsRoundedToTheNearest) {
  for (int bits = 0; bits < 0x10000; ++bits) expect_encoded(bf16_to_float(static_cast<std::uint16_t>(bits)));
}

TEST(Fp8, TiesGoToTheEvenCode) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (int code = 0; code + 1 < 0x7F; ++code) {
    const auto middle = static_cast<float>((magnitude_of(code) + magnitude_of(code + 1)) / 2);
    for (float x : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, infinity)}) {
      expect_encoded(x);
      expect_encoded(-x);
    }
    EXPECT_EQ(encode(middle) % 2, 0) << middle;
  }
}

TEST(Fp8, SubnormalsHugeNumbersAndRandomOnes) {
  for (float x : {0.0F, -0.0F, 0x1p-149F, 0x1p-127F, 0x1p-126F, 448.0F, 449.0F, 464.0F, 465.0F, 480.0F, 1e38F,
                  std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity(),
                  std::numeric_limits<float>::quiet_NaN()}) {
    expect_encoded(x);
    expect_encoded(-x);
  }
  std::mt19937 engine(0);
  for (int i = 0; i < 100000; ++i) {
    // Exponents around those of e4m3.
    expect_encoded(float_of((engine() & 0x807FFFFF) | (112 + engine() % 26) << 23));
  }
}

/// 2^ceil(log2(max(amax / 448, 1e-4))) in double precision.
int slow_exponent(double amax) {
  const double least = std::max(amax / 448, 1e-4);
  int exponent = 0;
  const double fraction = std::frexp(least, &exponent);  // least = fraction 2^exponent, 0.5 <= fraction < 1
  return fraction == 0.5 ? exponent - 1 : exponent;
}

TEST(Fp8, ScaleIsTheLeastPowerOfTwoThatFits) {
  EXPECT_EQ(scale_exponent(0), -13);
  EXPECT_EQ(scale_exponent(448), 0);
  EXPECT_EQ(scale_exponent(std::nextafter(448.0F, 449.0F)), 1);
  EXPECT_EQ(scale_exponent(bf16_to_float(0x7F7F)), 120);
  for (int power = -12; power <= 119; ++power) {
    const float amax = std::ldexp(448.0F, power);
    EXPECT_EQ(scale_exponent(amax), power);
    EXPECT_EQ(scale_exponent(std::nextafter(amax, 0.0F)), power);
    EXPECT_EQ(scale_exponent(std::nextafter(amax, std::numeric_limits<float>::infinity())), power + 1);
    EXPECT_EQ(power_of_two(power), std::ldexp(1.0F, power));
  }
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (int bits = 0; bits < 0x8000; ++bits) {
      const float amax = to_float(static_cast<std::uint16_t>(bits), dtype);
      if (!std::isfinite(amax)) continue;
      ASSERT_EQ(scale_exponent(amax), slow_exponent(amax)) << amax;
      ASSERT_LE(amax * power_of_two(-scale_exponent(amax)), kLargest) << amax;
    }
  }
}

TEST(Fp8, WhatWasReadIsWrittenBackUnchanged) {
  // A power-of-two scale times e4m3 is exact in bf16: a second quantisation has nothing to round.
  for (int exponent : {-13, -4, 0, 7, 119}) {
    for (int code = 0; code < 256; ++code) {
      const float x = decode(static_cast<std::uint8_t>(code)) * power_of_two(exponent);
      if (std::isnan(x)) continue;
      const float rounded = bf16_to_float(float_to_bf16(x));
      EXPECT_EQ(rounded, x);
      EXPECT_EQ(encode(rounded * power_of_two(-exponent)), code);
    }
  }
}

}  // namespace
}  // namespace flashlatent::fp8_656
