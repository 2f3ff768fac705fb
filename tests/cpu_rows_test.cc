// Conversions of cached rows on every SIMD target against the formulas of core/, bit for bit.
#include "cpu/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "fp8_tokens.h"
#include "only_target.h"

namespace flashlatent {
namespace {

TEST(CpuRows, AllNumbersBetweenDtypes) {
  Row from(0x10000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint16_t>(i);
  for (const std::int64_t target : simd_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const OnlyTarget only(target);
    for (auto [a, b] : {std::pair{Dtype::kBF16, Dtype::kF16}, {Dtype::kF16, Dtype::kBF16}}) {
      Row to(from.size());
      cpu::convert_row(from.data(), a, static_cast<int>(from.size()), to.data(), b);
      Row expected(from.size());
      for (std::size_t i = 0; i < from.size(); ++i) expected[i] = converted(from[i], a, b);
      expect_same(to.data(), expected.data(), from.size(), b);
    }
    for (int count = 0; count < 40; ++count) {  // nothing past the end is read or written
      Row to(count + 1, 0x1234);
      const Row some(from.begin() + 0x3F80, from.begin() + 0x3F80 + count);
      cpu::convert_row(some.data(), Dtype::kBF16, count, to.data(), Dtype::kF16);
      for (int i = 0; i < count; ++i) ASSERT_EQ(to[i], float_to_fp16(bf16_to_float(some[i])));
      ASSERT_EQ(to[count], 0x1234);
    }
  }
}

TEST(CpuRows, TokensAreQuantisedByTheDefinition) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  for (const std::int64_t target : simd_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const OnlyTarget only(target);
    for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
      for (int kind = 0; kind < 60; ++kind) {
        Row row(fp8_656::kDim);
        for (std::uint16_t& x : row) {
          // Any bits, NaN and infinities among them; normal numbers, few of them huge; zeros and one number.
          if (kind % 3 == 0) x = static_cast<std::uint16_t>(engine());
          if (kind % 3 == 1) x = from_float(normal(engine) * (engine() % 100 == 0 ? 5000.0F : 1.0F), dtype);
        }
        if (kind % 3 == 2) row[kind * 8] = from_float(std::ldexp(448.0F, kind % 8 - 20), dtype);
        Bytes token(fp8_656::kTokenBytes);
        cpu::quantise_token(kFp8_656Format, e4m3::kLeastOfScale, row.data(), row.data() + fp8_656::kLatentDim,
                            dtype, {token.data(), token.data() + fp8_656::kScaleOffset});
        expect_same_token(token.data(), quantised(row.data(), row.data() + fp8_656::kLatentDim, dtype));
      }
    }
  }
}

TEST(CpuRows, TokensAreDequantisedWithAnyScale) {
  std::mt19937 engine(2);
  const float scales[] = {1,        0.3F,   0x1p-13F,  0x1p-117F, 0x1p-118F, 0x1p119F,
                          0x1p120F, 1e-30F, 0x1p-140F, 0,         INFINITY,  NAN};
  // Without NaN a group may go another way.
  std::vector<std::pair<float, bool>> variants;
  for (float scale : scales) variants.insert(variants.end(), {{scale, false}, {scale, true}});
  for (const std::int64_t target : simd_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const OnlyTarget only(target);
    for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
      for (auto [first, without_nan] : variants) {
        Bytes bytes(fp8_656::kTokenBytes + 1);
        std::uint8_t* token = bytes.data() + 1;  // at any address
        for (int i = 0; i < fp8_656::kTokenBytes; ++i) token[i] = static_cast<std::uint8_t>(engine());
        for (int i = 0; i < 256; ++i) token[i] = static_cast<std::uint8_t>(i);
        if (without_nan) {
          std::replace(token, token + 256, 0x7F, 0x7E);
          std::replace(token, token + 256, 0xFF, 0xFE);
        }
        const float group_scales[] = {first, first, 0.7F, -2};
        std::memcpy(token + fp8_656::kScaleOffset, group_scales, sizeof(group_scales));
        Row row(fp8_656::kDim);
        cpu::dequantise_token(kFp8_656Format, {token, token + fp8_656::kScaleOffset}, true, dtype,
                              row.data());
        expect_same(row.data(), dequantised(token, dtype).data(), row.size(), dtype);
      }
    }
  }
}

}  // namespace
}  // namespace flashlatent
