// Cached rows by the definition: slow code on core/formats/fp8_656.h and core/element.h alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/element.h"
#include "core/formats/fp8_656.h"

namespace flashlatent {

using Row = std::vector<std::uint16_t>;
using Bytes = std::vector<std::uint8_t>;

inline std::uint16_t converted(std::uint16_t x, Dtype from, Dtype to) {
  return from == to ? x : from_float(to_float(x, from), to);
}

inline Bytes quantised(const std::uint16_t* latent, const std::uint16_t* rope, Dtype dtype) {
  Bytes token(fp8_656::kTokenBytes);
  for (int group = 0; group < fp8_656::kGroups; ++group) {
    const std::uint16_t* values = latent + group * fp8_656::kGroup;
    float amax = 0;
    for (int i = 0; i < fp8_656::kGroup; ++i) {
      const float x = to_float(values[i], dtype);
      if (std::isfinite(x)) amax = std::max(amax, std::abs(x));
    }
    const float scale = fp8_656::power_of_two(fp8_656::scale_exponent(amax));
    std::memcpy(token.data() + fp8_656::kScaleOffset + group * sizeof(scale), &scale, sizeof(scale));
    for (int i = 0; i < fp8_656::kGroup; ++i) {
      token[group * fp8_656::kGroup + i] = fp8_656::encode(to_float(values[i], dtype) / scale);
    }
  }
  for (int i = 0; i < fp8_656::kRopeDim; ++i) {
    const std::uint16_t value = converted(rope[i], dtype, Dtype::kBF16);
    std::memcpy(token.data() + fp8_656::kRopeOffset + i * sizeof(value), &value, sizeof(value));
  }
  return token;
}

inline Row dequantised(const std::uint8_t* token, Dtype dtype) {
  Row row(fp8_656::kDim);
  for (int i = 0; i < fp8_656::kLatentDim; ++i) {
    float scale;
    std::memcpy(&scale, token + fp8_656::kScaleOffset + i / fp8_656::kGroup * sizeof(scale), sizeof(scale));
    row[i] = from_float(fp8_656::decode(token[i]) * scale, dtype);
  }
  for (int i = 0; i < fp8_656::kRopeDim; ++i) {
    std::uint16_t value;
    std::memcpy(&value, token + fp8_656::kRopeOffset + i * sizeof(value), sizeof(value));
    row[fp8_656::kLatentDim + i] = converted(value, Dtype::kBF16, dtype);
  }
  return row;
}

/// Equal bits, but for a NaN's, which are free.
inline void expect_same(const std::uint16_t* got, const std::uint16_t* expected, std::size_t count,
                        Dtype dtype) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isnan(to_float(expected[i], dtype)) && std::isnan(to_float(got[i], dtype))) continue;
    ASSERT_EQ(got[i], expected[i]) << "element " << i;
  }
}

inline void expect_same_token(const std::uint8_t* got, const Bytes& expected) {
  ASSERT_TRUE(std::equal(expected.begin(), expected.begin() + fp8_656::kRopeOffset, got));
  Row ropes[2] = {Row(fp8_656::kRopeDim), Row(fp8_656::kRopeDim)};
  std::memcpy(ropes[0].data(), got + fp8_656::kRopeOffset, fp8_656::kRopeDim * 2);
  std::memcpy(ropes[1].data(), expected.data() + fp8_656::kRopeOffset, fp8_656::kRopeDim * 2);
  expect_same(ropes[0].data(), ropes[1].data(), fp8_656::kRopeDim, Dtype::kBF16);
}

}  // namespace flashlatent
