// Operations on e4m3 latent caches, on every backend that is there, against conversions by the definition.
#include <algorithm>
#include <cmath>
#include <random>

#include "contracts.h"
#include "core/scaled_e4m3.h"
#include "device_tensor.h"
#include "flashlatent/kv_cache.h"
#include "fp8_tokens.h"

namespace flashlatent {
namespace {

/// Not powers of two, so that quotients and products are rounded.
constexpr float kScale = 0.0137F, kOtherScale = 0.4F;

class KvCacheE4m3 : public Contracts {
 protected:
  /// Normal numbers; in some rows zeros, numbers beyond 448 scales, NaN and infinities.
  void fill(std::uint16_t* row, int count, Dtype dtype) {
    std::normal_distribution<float> normal;
    const int kind = static_cast<int>(engine_() % 4);
    for (int i = 0; i < count; ++i) {
      row[i] = from_float(kind == 0 ? 0.0F : normal(engine_), dtype);
      if (kind == 1 && engine_() % 40 == 0) row[i] = static_cast<std::uint16_t>(engine_());
      if (kind == 2) row[i] = from_float(10 * normal(engine_), dtype);
    }
  }
  void fill(Tensor& plain, std::int64_t tokens, std::int64_t page_size, int dim) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      fill(plain.row<std::uint16_t>(i / page_size, i % page_size), dim, plain.dtype());
    }
  }

  static Bytes quantised(const std::uint16_t* row, int count, Dtype dtype, float scale) {
    Bytes codes(count);
    for (int i = 0; i < count; ++i) {
      const double quotient = double{to_float(row[i], dtype)} / scale;
      // Rounded to fp32 first (QuotientsAreRoundedToFp32First).
      codes[i] = e4m3::encode(std::clamp(static_cast<float>(quotient), -3e38F, 3e38F));
      if (!std::isfinite(to_float(row[i], dtype))) codes[i] = e4m3::kNan;
    }
    return codes;
  }
  static Row dequantised(const std::uint8_t* codes, int count, Dtype dtype, float scale) {
    Row row(count);
    for (int i = 0; i < count; ++i) row[i] = from_float(e4m3::decode(codes[i]) * scale, dtype);
    return row;
  }

  Tensor scale_of(float value) const {
    Tensor scale(executor_, Dtype::kF32, {1});
    scale.set<float>({value});
    return scale;
  }

  std::mt19937 engine_{5};
};

INSTANTIATE_TEST_SUITE_P(Backends, KvCacheE4m3, kBackends, backend_name);

// e4m3(fp32(x / scale)). 0.01F is just below 1/100, so that 1 / 0.01F is just above 100, which is in the
// middle of 96 and 104. In fp32 it is 100, and a tie goes to the even 96; a quotient of more digits would
// give 104. Rows have each width that a writer may take: whole words and single elements.
TEST_P(KvCacheE4m3, QuotientsAreRoundedToFp32First) {
  static_assert(1.0 / 0.01F > 100 && 1.0F / 0.01F == 100);
  Tensor scale = scale_of(0.01F);
  for (Dtype from : {Dtype::kBF16, Dtype::kF16}) {
    for (auto [d_latent, d_rope] : {std::pair{512, 0}, {445, 67}}) {
      constexpr int kDim = 512;
      Tensor latent(executor_, from, {1, d_latent}), rope(executor_, from, {1, std::max(d_rope, 1)});
      Tensor mapping(executor_, Dtype::kI32, {1}), cache(executor_, Dtype::kU8, {1, 1, 1, kDim});
      auto sign = [](int i) { return i % 2 == 0 ? 1 : -1; };
      for (int i = 0; i < d_latent; ++i) latent.row<std::uint16_t>(0)[i] = from_float(sign(i), from);
      for (int i = 0; i < d_rope; ++i) rope.row<std::uint16_t>(0)[i] = from_float(sign(d_latent + i), from);
      mapping.set<std::int32_t>({0});
      const ConstTensorView rope_view = d_rope > 0 ? ConstTensorView(rope.upload()) : ConstTensorView();
      const Status status = append_latent(latent.upload(), rope_view, mapping.upload(), cache.upload(),
                                          executor_, scale.upload());
      ASSERT_TRUE(status.ok()) << status.message();
      cache.download();
      for (int i = 0; i < kDim; ++i) ASSERT_EQ(e4m3::decode(cache.row(0)[i]), 96 * sign(i)) << i;
    }
  }
}

TEST_P(KvCacheE4m3, AppendWritesTheNamedSlotsAlone) {
  for (Dtype from : {Dtype::kBF16, Dtype::kF16}) {
    for (auto [d_latent, d_rope] : {std::pair{512, 64}, {512, 0}, {445, 67}}) {
      for (int padding : {0, 3, 16}) {
        const int dim = d_latent + d_rope;
        constexpr std::int64_t kPages = 4, kPageSize = 5, kTokens = 9;
        Tensor latent(executor_, from, {kTokens, d_latent}, padding);
        Tensor rope(executor_, from, {kTokens, std::max(d_rope, 1)});
        for (int i = 0; i < kTokens; ++i) {
          fill(latent.row<std::uint16_t>(i), d_latent, from);
          fill(rope.row<std::uint16_t>(i), d_rope, from);
        }
        const std::vector<std::int32_t> order = {7, 0, 19, -1, 3, 12, 11, 5, 18};
        Tensor mapping(executor_, Dtype::kI32, {kTokens});
        mapping.set(order);
        Tensor cache(executor_, Dtype::kU8, {kPages, kPageSize, 1, dim}, padding);
        const Bytes before = cache.bytes();
        const ConstTensorView rope_view = d_rope > 0 ? ConstTensorView(rope.upload()) : ConstTensorView();
        Tensor scale = scale_of(kScale);
        const Status status = append_latent(latent.upload(), rope_view, mapping.upload(), cache.upload(),
                                            executor_, scale.upload());
        ASSERT_TRUE(status.ok()) << status.message();
        cache.download();
        for (int i = 0; i < kTokens; ++i) {
          if (order[i] < 0) continue;
          std::uint8_t* token = cache.row(order[i] / kPageSize, order[i] % kPageSize);
          const Bytes nope = quantised(latent.row<std::uint16_t>(i), d_latent, from, kScale);
          const Bytes rotated = quantised(rope.row<std::uint16_t>(i), d_rope, from, kScale);
          EXPECT_TRUE(std::equal(nope.begin(), nope.end(), token)) << i;
          EXPECT_TRUE(std::equal(rotated.begin(), rotated.end(), token + d_latent)) << i;
          std::fill_n(token, dim, kUntouched);
        }
        EXPECT_EQ(cache.bytes(), before) << "something else was written";
      }
    }
  }
}

TEST_P(KvCacheE4m3, QuantiseDequantiseCopyAndChangeTheScale) {
  for (int dim : {512, 576}) {
    for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
      constexpr std::int64_t kPages = 3, kPageSize = 7;
      Tensor plain(executor_, dtype, {kPages, kPageSize, 1, dim}),
          back(executor_, dtype, {kPages, kPageSize, 1, dim}, 8);
      Tensor cache(executor_, Dtype::kU8, {kPages, kPageSize, 1, dim}, 16);
      Tensor copy(executor_, Dtype::kU8, {kPages, kPageSize, 1, dim});
      Tensor other(executor_, Dtype::kU8, {kPages, kPageSize, 1, dim}, 3);
      Tensor scale = scale_of(kScale), other_scale = scale_of(kOtherScale);
      const TensorView s = scale.upload(), t = other_scale.upload();
      fill(plain, kPages * kPageSize, kPageSize, dim);
      ASSERT_TRUE(convert_cache(plain.upload(), cache.upload(), executor_, {}, s).ok());
      ASSERT_TRUE(convert_cache(cache.view(), copy.upload(), executor_, s, s).ok());
      ASSERT_TRUE(convert_cache(cache.view(), other.upload(), executor_, s, t).ok());
      ASSERT_TRUE(convert_cache(copy.view(), back.upload(), executor_, s).ok());
      for (Tensor* tensor : {&cache, &copy, &other, &back}) tensor->download();
      for (std::int64_t i = 0; i < kPages * kPageSize; ++i) {
        const std::int64_t page = i / kPageSize, offset = i % kPageSize;
        const Bytes expected = quantised(plain.row<std::uint16_t>(page, offset), dim, dtype, kScale);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), cache.row(page, offset)));
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), copy.row(page, offset)));
        expect_same(back.row<std::uint16_t>(page, offset),
                    dequantised(expected.data(), dim, dtype, kScale).data(), dim, dtype);
        for (int d = 0; d < dim; ++d) {
          const float x = fp8_656::decode_scaled(expected[d], kScale);
          ASSERT_EQ(other.row(page, offset)[d], fp8_656::encode_scaled(x, kOtherScale)) << d;
        }
      }
    }
  }
}

TEST_P(KvCacheE4m3, GatherFollowsThePageTable) {
  constexpr std::int64_t kPages = 6, kPageSize = 5;
  constexpr int kDim = 576;
  Tensor plain(executor_, Dtype::kBF16, {kPages, kPageSize, 1, kDim});
  Tensor cache(executor_, Dtype::kU8, {kPages, kPageSize, 1, kDim});
  Tensor scale = scale_of(kScale);
  const TensorView s = scale.upload();
  fill(plain, kPages * kPageSize, kPageSize, kDim);
  ASSERT_TRUE(convert_cache(plain.upload(), cache.upload(), executor_, {}, s).ok());
  cache.download();
  const std::vector<std::int32_t> table = {4, 0, -1, 2, 99, 5}, ends = {0, 12, 22};
  Tensor pages(executor_, Dtype::kI32, {2, 3}), sums(executor_, Dtype::kI32, {3});
  pages.set(table);
  sums.set(ends);
  for (Dtype to : {Dtype::kU8, Dtype::kBF16, Dtype::kF16}) {
    Tensor out(executor_, to, {22, 1, kDim}, 8);
    const Status status =
        gather_cache(cache.view(), pages.upload(), sums.upload(), {}, out.upload(), executor_, s);
    ASSERT_TRUE(status.ok()) << status.message();
    out.download();
    for (int row = 0; row < 22; ++row) {
      const int request = row < 12 ? 0 : 1, token = row - ends[request];
      const int page = table[request * 3 + token / 5];
      const std::uint8_t* got = out.row(row);
      if (page < 0 || page >= kPages) {
        EXPECT_TRUE(std::all_of(got, got + kDim * size_of(to), [](std::uint8_t x) { return x == 0; })) << row;
      } else if (to == Dtype::kU8) {
        EXPECT_TRUE(std::equal(got, got + kDim, cache.row(page, token % 5)));
      } else {
        expect_same(out.row<std::uint16_t>(row),
                    dequantised(cache.row(page, token % 5), kDim, to, kScale).data(), kDim, to);
      }
    }
  }
}

TEST_P(KvCacheE4m3, CopyPages) {
  Tensor cache(executor_, Dtype::kU8, {3, 4, 1, 576});
  for (int i = 0; i < 12; ++i) std::fill_n(cache.row(i / 4, i % 4), 576, static_cast<std::uint8_t>(i));
  Tensor pairs(executor_, Dtype::kI32, {1, 2});
  pairs.set<std::int32_t>({2, 0});
  ASSERT_TRUE(copy_pages(cache.upload(), cache.view(), pairs.upload(), executor_).ok());
  cache.download();
  EXPECT_EQ(cache.row(0, 3)[575], 11);
  EXPECT_EQ(cache.row(1, 0)[0], 4);
}

TEST_P(KvCacheE4m3, TensorsThatDoNotFitAreNamed) {
  Tensor plain(executor_, Dtype::kBF16, {2, 4, 1, 576}), narrow(executor_, Dtype::kBF16, {2, 4, 1, 512}),
      cache(executor_, Dtype::kU8, {2, 4, 1, 576}), scales(executor_, Dtype::kF32, {2});
  Tensor scale = scale_of(1);
  auto refused = [](const Status& status, const char* words) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  refused(convert_cache(plain.view(), cache.view(), executor_, scale.view()),
          "from_scale is given, but from is bf16; e4m3 caches have one scale");
  refused(convert_cache(plain.view(), cache.view(), executor_, {}, scales.view()), "to_scale is fp32 (2)");
  refused(convert_cache(narrow.view(), cache.view(), executor_),
          "but to is e4m3; one KV head of 576 elements would fit");
  Tensor other(executor_, Dtype::kU8, {2, 4, 1, 577});
  refused(convert_cache(other.view(), plain.view(), executor_), "584), which is fp8_584");
}

// A device's scales are not read.
TEST_P(KvCacheE4m3, ScalesOnTheCpuArePositiveAndFinite) {
  if (executor_.backend != Backend::kCpu) GTEST_SKIP();
  Tensor plain(executor_, Dtype::kBF16, {2, 4, 1, 576}), cache(executor_, Dtype::kU8, {2, 4, 1, 576});
  for (const float number : {0.0F, -1.0F, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Tensor scale = scale_of(number);
    const Status status = convert_cache(plain.view(), cache.view(), executor_, {}, scale.upload());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << number;
    EXPECT_NE(status.message().find("to_scale[0] is "), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace flashlatent
