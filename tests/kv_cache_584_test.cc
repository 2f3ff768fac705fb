// Operations on fp8_584 caches, on every backend that is there, against conversions by the definition.
#include <cstring>
#include <numeric>
#include <random>

#include "contracts.h"
#include "core/formats/fp8_584.h"
#include "device_tensor.h"
#include "flashlatent/kv_cache.h"
#include "fp8_tokens.h"

namespace flashlatent {
namespace {

constexpr int kDim = fp8_584::kDim;

/// 576 bytes of data and 8 of scales.
Bytes quantised_584(const std::uint16_t* row, Dtype dtype) {
  Bytes token(fp8_584::kTokenBytes);
  for (int group = 0; group < fp8_584::kGroups; ++group) {
    float amax = 0;
    for (int i = group * 64; i < group * 64 + 64; ++i) {
      const float x = to_float(row[i], dtype);
      if (std::isfinite(x)) amax = std::max(amax, std::abs(x));
    }
    const int exponent =
        static_cast<int>(std::ceil(std::log2(std::max(static_cast<double>(amax), 1e-4) / 448)));
    token[fp8_584::kDataBytes + group] = static_cast<std::uint8_t>(exponent + 127);
    for (int i = group * 64; i < group * 64 + 64; ++i) {
      token[i] = e4m3::encode(std::ldexp(to_float(row[i], dtype), -exponent));
    }
  }
  for (int i = 0; i < fp8_584::kRopeDim; ++i) {
    const std::uint16_t value = converted(row[fp8_584::kNopeDim + i], dtype, Dtype::kBF16);
    std::memcpy(token.data() + fp8_584::kRopeOffset + 2 * i, &value, 2);
  }
  return token;
}

class KvCache584 : public Contracts {
 protected:
  /// Numbers of every kind: normal ones, zeros, huge and tiny ones, NaN and infinities.
  void fill(std::uint16_t* row, int count, Dtype dtype) {
    std::normal_distribution<float> normal;
    const int kind = static_cast<int>(engine_() % 5);
    for (int i = 0; i < count; ++i) {
      row[i] = from_float(kind == 0 ? 0.0F : normal(engine_), dtype);
      if (kind == 1 && engine_() % 40 == 0) row[i] = static_cast<std::uint16_t>(engine_());
      if (kind == 2) row[i] = from_float(1e4F * normal(engine_), dtype);
      if (kind == 3) row[i] = from_float(1e-4F * normal(engine_), dtype);
    }
  }
  void fill(Tensor& plain, std::int64_t pages, std::int64_t page_size) {
    for (std::int64_t i = 0; i < pages * page_size; ++i) {
      fill(plain.row<std::uint16_t>(i / page_size, i % page_size), kDim, plain.dtype());
    }
  }

  Tensor pages_584(std::int64_t pages, std::int64_t page_size, std::int64_t padding) const {
    TensorView view(nullptr, Dtype::kU8, {pages, page_size, 1, fp8_584::kTokenBytes});
    view.strides[0] = least_page_stride(KvFormat::kFp8_584, page_size) + padding;
    return {executor_, view};
  }

  static std::uint8_t* data(Tensor& cache, std::int64_t page, std::int64_t offset) {
    return cache.row(page) + fp8_584::data_offset(offset);
  }
  static std::uint8_t* scales(Tensor& cache, std::int64_t page, std::int64_t offset) {
    return cache.row(page) + fp8_584::scale_offset(cache.view().shape[1], offset);
  }

  static void expect_token(const std::uint8_t* data, const std::uint8_t* scales, const Bytes& expected) {
    ASSERT_TRUE(std::equal(data, data + fp8_584::kNopeDim, expected.begin()));
    ASSERT_TRUE(std::equal(scales, scales + 8, expected.begin() + fp8_584::kDataBytes));
    Row got(64), wanted(64);
    std::memcpy(got.data(), data + fp8_584::kRopeOffset, 128);
    std::memcpy(wanted.data(), expected.data() + fp8_584::kRopeOffset, 128);
    expect_same(got.data(), wanted.data(), 64, Dtype::kBF16);
  }

  static Row dequantised_584(const std::uint8_t* data, const std::uint8_t* scales, Dtype dtype) {
    Row row(kDim);
    for (int i = 0; i < fp8_584::kNopeDim; ++i) {
      row[i] = from_float(e4m3::decode(data[i]) * fp8_584::scale_value(scales[i / 64]), dtype);
    }
    for (int i = 0; i < 64; ++i) {
      std::uint16_t value;
      std::memcpy(&value, data + fp8_584::kRopeOffset + 2 * i, 2);
      row[fp8_584::kNopeDim + i] = converted(value, Dtype::kBF16, dtype);
    }
    return row;
  }

  std::mt19937 engine_{5};
};

INSTANTIATE_TEST_SUITE_P(Backends, KvCache584, kBackends, backend_name);

TEST_P(KvCache584, AppendWritesTheNamedSlotsAlone) {
  for (Dtype from : {Dtype::kBF16, Dtype::kF16}) {
    for (std::int64_t page_size : {1, 2, 3, 64}) {
      for (int padding : {0, 16, 4096}) {
        const std::int64_t pages = page_size == 64 ? 2 : 20, slots = pages * page_size, n = 15;
        Tensor latent(executor_, from, {n, 448}, padding > 0 ? 8 : 0),
            rope(executor_, from, {n, 64}, padding > 16 ? 3 : 0);
        for (int i = 0; i < n; ++i) {
          fill(latent.row<std::uint16_t>(i), 448, from);
          fill(rope.row<std::uint16_t>(i), 64, from);
        }
        std::vector<std::int32_t> order(slots);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), engine_);
        order.resize(n);
        order[3] = -1;
        Tensor mapping(executor_, Dtype::kI32, {n});
        mapping.set(order);
        Tensor cache = pages_584(pages, page_size, padding);
        const Bytes before = cache.bytes();
        const Status status =
            append_latent(latent.upload(), rope.upload(), mapping.upload(), cache.upload(), executor_);
        ASSERT_TRUE(status.ok()) << status.message();
        cache.download();
        for (int i = 0; i < n; ++i) {
          if (order[i] < 0) continue;
          Row row(latent.row<std::uint16_t>(i), latent.row<std::uint16_t>(i) + 448);
          row.insert(row.end(), rope.row<std::uint16_t>(i), rope.row<std::uint16_t>(i) + 64);
          const std::int64_t page = order[i] / page_size, offset = order[i] % page_size;
          expect_token(data(cache, page, offset), scales(cache, page, offset),
                       quantised_584(row.data(), from));
          std::fill_n(data(cache, page, offset), fp8_584::kDataBytes, kUntouched);
          std::fill_n(scales(cache, page, offset), fp8_584::kScaleBytes, kUntouched);
        }
        EXPECT_EQ(cache.bytes(), before) << "something else was written";
      }
    }
  }
}

TEST_P(KvCache584, QuantiseDequantiseCopy) {
  for (std::int64_t page_size : {1, 2, 3, 64, 256}) {
    const std::int64_t pages = 3;
    for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
      Tensor plain(executor_, dtype, {pages, page_size, 1, kDim}),
          back(executor_, dtype, {pages, page_size, 1, kDim});
      Tensor cache = pages_584(pages, page_size, 32), copy = pages_584(pages, page_size, 0);
      fill(plain, pages, page_size);
      ASSERT_TRUE(convert_cache(plain.upload(), cache.upload(), executor_).ok());
      cache.download();
      ASSERT_TRUE(convert_cache(cache.upload(), copy.upload(), executor_).ok());
      ASSERT_TRUE(convert_cache(copy.view(), back.upload(), executor_).ok());
      copy.download();
      back.download();
      for (std::int64_t i = 0; i < pages * page_size; ++i) {
        const std::int64_t page = i / page_size, offset = i % page_size;
        const Bytes expected = quantised_584(plain.row<std::uint16_t>(page, offset), dtype);
        expect_token(data(cache, page, offset), scales(cache, page, offset), expected);
        expect_token(data(copy, page, offset), scales(copy, page, offset), expected);
        expect_same(back.row<std::uint16_t>(page, offset),
                    dequantised_584(data(cache, page, offset), scales(cache, page, offset), dtype).data(),
                    kDim, dtype);
      }
    }
  }
}

TEST_P(KvCache584, GatherFollowsThePageTable) {
  constexpr std::int64_t kPages = 6, kPageSize = 5;
  Tensor plain(executor_, Dtype::kBF16, {kPages, kPageSize, 1, kDim});
  Tensor cache = pages_584(kPages, kPageSize, 16);
  fill(plain, kPages, kPageSize);
  ASSERT_TRUE(convert_cache(plain.upload(), cache.upload(), executor_).ok());
  cache.download();
  const std::vector<std::int32_t> table = {4, 0, -1, 2, 99, 5, 1, 1, 3}, ends = {0, 12, 12, 31};
  Tensor pages(executor_, Dtype::kI32, {3, 3}), sums(executor_, Dtype::kI32, {4});
  pages.set(table);
  sums.set(ends);
  for (Dtype to : {Dtype::kU8, Dtype::kBF16, Dtype::kF16}) {
    const std::int64_t last = to == Dtype::kU8 ? fp8_584::kTokenBytes : kDim;
    Tensor out(executor_, to, {31, 1, last}, 8);
    const Status status =
        gather_cache(cache.view(), pages.upload(), sums.upload(), {}, out.upload(), executor_);
    ASSERT_TRUE(status.ok()) << status.message();
    out.download();
    for (int row = 0; row < 31; ++row) {
      const int request = row < 12 ? 0 : 2, token = row - ends[request];
      const int page = token / 5 < 3 ? table[request * 3 + token / 5] : -1;
      const std::uint8_t* got = out.row(row);
      if (page < 0 || page >= kPages) {
        EXPECT_TRUE(std::all_of(got, got + last * size_of(to), [](std::uint8_t x) { return x == 0; })) << row;
      } else if (to == Dtype::kU8) {
        EXPECT_TRUE(std::equal(got, got + 576, data(cache, page, token % 5)));
        EXPECT_TRUE(std::equal(got + 576, got + 584, scales(cache, page, token % 5)));
      } else {
        expect_same(out.row<std::uint16_t>(row),
                    dequantised_584(data(cache, page, token % 5), scales(cache, page, token % 5), to).data(),
                    kDim, to);
      }
    }
  }
}

TEST_P(KvCache584, CopyPages) {
  for (std::int64_t page_size : {1, 2, 3, 64}) {
    Tensor plain(executor_, Dtype::kBF16, {4, page_size, 1, kDim});
    Tensor cache = pages_584(4, page_size, 0), other = pages_584(5, page_size, 144);
    fill(plain, 4, page_size);
    ASSERT_TRUE(convert_cache(plain.upload(), cache.upload(), executor_).ok());
    Tensor pairs(executor_, Dtype::kI32, {2, 2});
    pairs.set<std::int32_t>({3, 0, 1, 4});
    ASSERT_TRUE(copy_pages(cache.view(), other.upload(), pairs.upload(), executor_).ok());
    cache.download();
    other.download();
    for (auto [from, to] : {std::pair{3, 0}, {1, 4}}) {
      EXPECT_TRUE(std::equal(cache.row(from), cache.row(from) + page_size * 584, other.row(to)));
    }
    EXPECT_EQ(other.row(1)[0], kUntouched);
  }
}

TEST_P(KvCache584, TensorsThatDoNotFitAreNamed) {
  Tensor plain(executor_, Dtype::kBF16, {2, 4, 1, 576}), latent(executor_, Dtype::kBF16, {3, 512}),
      rope(executor_, Dtype::kBF16, {3, 64}), slots(executor_, Dtype::kI32, {3});
  Tensor cache = pages_584(2, 4, 0);
  auto refused = [](const Status& status, const char* words) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  refused(append_latent(latent.upload(), rope.upload(), slots.upload(), cache.upload(), executor_),
          "(3, 448)");
  refused(convert_cache(plain.upload(), cache.upload(), executor_),
          "to is fp8_584; one KV head of 512 elements would fit");
  TensorView rows = cache.view();
  rows.strides[1] = 576;
  refused(convert_cache(rows, plain.upload(), executor_), "584 bytes from token to token");
}

}  // namespace
}  // namespace flashlatent
