// Operations on caches of DeepSeek V4.1's formats and fp8_528, and from any format to any other, on every
// backend that is there, against conversions by the definition.
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "contracts.h"
#include "core/formats/formats.h"
#include "device_tensor.h"
#include "flashlatent/kv_cache.h"
#include "fp8_tokens.h"

namespace flashlatent {
namespace {

/// The e2m1 code of the number nearest to x, by search; of two as near the even one.
std::uint8_t nearest_e2m1(float x) {
  if (std::isnan(x)) return 0;
  constexpr double kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const double magnitude = std::min(std::abs(double{x}), 6.0);
  int best = 7;
  for (int code = 7; code >= 0; --code) {
    const double here = std::abs(magnitude - kNumbers[code]), there = std::abs(magnitude - kNumbers[best]);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? 8 : 0));
}

/// A token as it is written: its data without scales, and its scales.
struct Written {
  Bytes data, scales;
};
Written written(const LatentFormat& format, const std::vector<float>& row, ScaleFloor floor) {
  const bool e2m1 = format.elements == Elements::kE2m1;
  Written token{Bytes(format.data_bytes), Bytes(format.scale_bytes)};
  for (int group = 0; group < format.groups(); ++group) {
    const float* x = row.data() + group * format.group;
    float amax = 0;
    for (int i = 0; i < format.group; ++i) amax = std::isfinite(x[i]) ? std::max(amax, std::abs(x[i])) : amax;
    float scale = 0;
    if (e2m1) {
      token.scales[group] = e4m3::encode(std::clamp(amax / 6, 0x1p-9F, 448.0F));
      scale = e4m3::decode(token.scales[group]);
    } else {
      const bool by_amax = (floor == ScaleFloor::kAuto ? format.rule : floor) == ScaleFloor::kAmax;
      const double bounded =
          by_amax ? std::max<double>(amax, 1e-4) / 448 : std::max<double>(amax / 448.0, 1e-4);
      const int exponent = static_cast<int>(std::ceil(std::log2(bounded)));
      scale = std::ldexp(1.0F, exponent);
      if (format.scales == ScaleKind::kUe8m0) {
        token.scales[group] = static_cast<std::uint8_t>(exponent + 127);
      } else {
        std::memcpy(token.scales.data() + 4 * group, &scale, 4);
      }
    }
    for (int i = 0; i < format.group; ++i) {
      const int at = group * format.group + i;
      if (e2m1) {
        token.data[at / 2] |= static_cast<std::uint8_t>(nearest_e2m1(x[i] / scale) << (at % 2 * 4));
      } else {
        token.data[at] = e4m3::encode(x[i] / scale);
      }
    }
  }
  for (int i = 0; i < format.rope_dim; ++i) {
    const std::uint16_t bits = from_float(row[format.scaled_dim() + i], Dtype::kBF16);
    std::memcpy(token.data.data() + format.rope_offset + 2 * i, &bits, 2);
  }
  if (!format.apart())
    std::copy(token.scales.begin(), token.scales.end(), token.data.begin() + format.scale_offset);
  return token;
}

/// A token's elements.
std::vector<float> read(const LatentFormat& format, const std::uint8_t* data, const std::uint8_t* scales) {
  std::vector<float> row(format.dim);
  for (int i = 0; i < format.scaled_dim(); ++i) {
    const int group = i / format.group;
    float scale;
    std::memcpy(&scale, scales + (format.scales == ScaleKind::kFp32 ? 4 * group : 0), 4);
    if (format.scales == ScaleKind::kUe8m0) scale = std::ldexp(1.0F, scales[group] - 127);
    if (format.scales == ScaleKind::kE4m3) scale = e4m3::decode(scales[group]);
    constexpr float kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0F, -0.5, -1, -1.5, -2, -3, -4, -6};
    row[i] = scale * (format.elements == Elements::kE2m1 ? kE2m1[data[i / 2] >> (i % 2 * 4) & 0xF]
                                                         : e4m3::decode(data[i]));
  }
  for (int i = 0; i < format.rope_dim; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, data + format.rope_offset + 2 * i, 2);
    row[format.scaled_dim() + i] = bf16_to_float(bits);
  }
  return row;
}

class KvCacheRecords : public Contracts {
 protected:
  static std::vector<const LatentFormat*> records(int dim) {
    std::vector<const LatentFormat*> list;
    for (const LatentFormat* format : kFormats) {
      if (format->is_record() && format->dim == dim) list.push_back(format);
    }
    return list;
  }

  /// Numbers of every kind, NaN and infinities among them; halves of units, which are ties.
  void fill(std::uint16_t* row, int count, Dtype dtype) {
    std::normal_distribution<float> normal;
    const int kind = static_cast<int>(engine_() % 7);
    for (int i = 0; i < count; ++i) {
      row[i] = from_float(kind == 0 ? 0.0F : normal(engine_), dtype);
      if (kind == 1 && engine_() % 40 == 0) row[i] = static_cast<std::uint16_t>(engine_());
      if (kind == 2) row[i] = from_float(1e4F * normal(engine_), dtype);
      if (kind == 3) row[i] = from_float(1e-4F * normal(engine_), dtype);
      if (kind == 4) row[i] = from_float(0.01F * normal(engine_), dtype);
      if (kind == 5) row[i] = from_float(0.25F * static_cast<float>(engine_() % 49) - 6, dtype);
    }
  }

  Tensor cache_of(const LatentFormat& format, std::int64_t pages, std::int64_t page_size,
                  std::int64_t padding) {
    TensorView view(nullptr, Dtype::kU8, {pages, page_size, 1, format.token_bytes()});
    view.strides[0] = format.least_page_stride(page_size, 0) + padding;
    return {executor_, view};
  }
  static std::uint8_t* data(const LatentFormat& format, Tensor& cache, std::int64_t slot) {
    const std::int64_t page_size = cache.view().shape[1];
    return cache.row(slot / page_size) + format.data_at(slot % page_size, cache.view().strides[1]);
  }
  static std::uint8_t* scales(const LatentFormat& format, Tensor& cache, std::int64_t slot) {
    const std::int64_t page_size = cache.view().shape[1];
    return cache.row(slot / page_size) +
           format.scales_at(page_size, slot % page_size, cache.view().strides[1]);
  }
  static void expect_token(const LatentFormat& format, const std::uint8_t* data, const std::uint8_t* scales,
                           const Written& expected, const char* what) {
    // NaN in the RoPE part may have any payload.
    const int codes = format.rope_dim > 0 ? format.rope_offset : format.data_bytes;
    ASSERT_TRUE(std::equal(data, data + codes, expected.data.begin())) << format.name << what;
    ASSERT_TRUE(std::equal(scales, scales + format.scale_bytes, expected.scales.begin()))
        << format.name << what;
  }

  std::mt19937 engine_{5};
};

INSTANTIATE_TEST_SUITE_P(Backends, KvCacheRecords, kBackends, backend_name);

TEST_P(KvCacheRecords, AppendWritesTheNamedSlotsAlone) {
  for (const LatentFormat* format : records(512)) {
    for (const ScaleFloor floor : {ScaleFloor::kAuto, ScaleFloor::kScale, ScaleFloor::kAmax}) {
      if (floor != ScaleFloor::kAuto && format->rule == ScaleFloor::kAuto) continue;
      for (Dtype from : {Dtype::kBF16, Dtype::kF16}) {
        for (const auto& [page_size, padding] : {std::pair{1, 0}, {3, 16}, {64, 4096}}) {
          const std::int64_t pages = page_size == 64 ? 2 : 20, slots = pages * page_size, n = 25;
          const int d_rope = format->rope_dim > 0 || padding == 16 ? 64 : 0;
          Tensor latent(executor_, from, {n, 512 - d_rope}, padding > 0 ? 8 : 0),
              rope(executor_, from, {n, 64}, padding > 16 ? 3 : 0);
          std::vector<std::vector<float>> rows(n);
          for (int i = 0; i < n; ++i) {
            fill(latent.row<std::uint16_t>(i), 512 - d_rope, from);
            fill(rope.row<std::uint16_t>(i), 64, from);
            for (int d = 0; d < 512; ++d) {
              rows[i].push_back(to_float(d < 512 - d_rope ? latent.row<std::uint16_t>(i)[d]
                                                          : rope.row<std::uint16_t>(i)[d - 512 + d_rope],
                                         from));
            }
          }
          std::vector<std::int32_t> order(slots);
          std::iota(order.begin(), order.end(), 0);
          std::shuffle(order.begin(), order.end(), engine_);
          order.resize(std::min<std::int64_t>(n, slots));
          order.resize(n, -1);
          order[3] = -1;
          Tensor mapping(executor_, Dtype::kI32, {n});
          mapping.set(order);
          Tensor cache = cache_of(*format, pages, page_size, padding);
          const Bytes before = cache.bytes();
          const Status status =
              append_latent(latent.upload(), d_rope > 0 ? ConstTensorView(rope.upload()) : ConstTensorView{},
                            mapping.upload(), cache.upload(), executor_, {}, said_as(*format, floor));
          ASSERT_TRUE(status.ok()) << status.message();
          cache.download();
          for (int i = 0; i < n; ++i) {
            if (order[i] < 0) continue;
            expect_token(*format, data(*format, cache, order[i]), scales(*format, cache, order[i]),
                         written(*format, rows[i], floor), to_string(floor));
            std::fill_n(data(*format, cache, order[i]), format->data_bytes, kUntouched);
            std::fill_n(scales(*format, cache, order[i]), format->scale_bytes, kUntouched);
          }
          EXPECT_EQ(cache.bytes(), before) << "something else was written";
        }
      }
    }
  }
}

TEST_P(KvCacheRecords, EveryFormatIntoEveryOther) {
  constexpr std::int64_t kPages = 3, kPageSize = 7, kSlots = kPages * kPageSize;
  for (const int dim : {512, 576}) {
    Tensor plain(executor_, Dtype::kBF16, {kPages, kPageSize, 1, dim});
    for (std::int64_t i = 0; i < kSlots; ++i) {
      fill(plain.row<std::uint16_t>(i / kPageSize, i % kPageSize), dim, Dtype::kBF16);
    }
    const float number = 0.02F;
    Tensor scale(executor_, Dtype::kF32, {1});
    std::memcpy(scale.row(0), &number, 4);
    scale.upload();
    Tensor codes(executor_, Dtype::kU8, {kPages, kPageSize, 1, dim});
    ASSERT_TRUE(convert_cache(plain.upload(), codes.upload(), executor_, {}, scale.view()).ok());
    for (const LatentFormat* from : records(dim)) {
      Tensor source = cache_of(*from, kPages, kPageSize, 16);
      Status status = convert_cache(plain.view(), source.upload(), executor_, {}, {}, {}, said_as(*from));
      ASSERT_TRUE(status.ok()) << status.message();
      source.download();
      for (const LatentFormat* to : records(dim)) {
        Tensor target = cache_of(*to, kPages, kPageSize, 32);
        status =
            convert_cache(source.view(), target.upload(), executor_, {}, {}, said_as(*from), said_as(*to));
        ASSERT_TRUE(status.ok()) << status.message();
        target.download();
        for (std::int64_t slot = 0; slot < kSlots; ++slot) {
          const std::uint8_t *bytes = data(*from, source, slot), *its_scales = scales(*from, source, slot);
          Written expected = written(*to, read(*from, bytes, its_scales), ScaleFloor::kAuto);
          if (from->format == to->format) {  // tokens are copied
            const int shared = std::min(from->data_bytes, to->data_bytes);
            expected.scales.assign(its_scales, its_scales + from->scale_bytes);
            expected.data.assign(bytes, bytes + shared);
            expected.data.insert(expected.data.end(), its_scales, its_scales + to->data_bytes - shared);
          }
          expect_token(*to, data(*to, target, slot), scales(*to, target, slot), expected, from->name);
        }
      }
      // From and to e4m3, whose scale the caller gives; and back to elements.
      Tensor e4m3(executor_, Dtype::kU8, {kPages, kPageSize, 1, dim});
      status = convert_cache(source.view(), e4m3.upload(), executor_, {}, scale.view(), said_as(*from));
      ASSERT_TRUE(status.ok()) << status.message();
      e4m3.download();
      Tensor back(executor_, Dtype::kF16, {kPages, kPageSize, 1, dim});
      ASSERT_TRUE(convert_cache(source.view(), back.upload(), executor_, {}, {}, said_as(*from)).ok());
      back.download();
      Tensor of_codes = cache_of(*from, kPages, kPageSize, 0);
      ASSERT_TRUE(
          convert_cache(codes.view(), of_codes.upload(), executor_, scale.view(), {}, {}, said_as(*from))
              .ok());
      of_codes.download();
      codes.download();
      for (std::int64_t slot = 0; slot < kSlots; ++slot) {
        const std::vector<float> row = read(*from, data(*from, source, slot), scales(*from, source, slot));
        Row halves(dim);
        std::vector<float> of_code(dim);
        for (int d = 0; d < dim; ++d) {
          ASSERT_EQ(e4m3.row(slot / kPageSize, slot % kPageSize)[d], e4m3::encode(row[d] / number))
              << from->name;
          halves[d] = from_float(row[d], Dtype::kF16);
          of_code[d] = e4m3::decode(codes.row(slot / kPageSize, slot % kPageSize)[d]) * number;
        }
        expect_same(back.row<std::uint16_t>(slot / kPageSize, slot % kPageSize), halves.data(), dim,
                    Dtype::kF16);
        expect_token(*from, data(*from, of_codes, slot), scales(*from, of_codes, slot),
                     written(*from, of_code, ScaleFloor::kAuto), "of e4m3");
      }
    }
  }
}

TEST_P(KvCacheRecords, GatherAndCopyPages) {
  constexpr std::int64_t kPages = 6, kPageSize = 5;
  Tensor plain(executor_, Dtype::kBF16, {kPages, kPageSize, 1, 512});
  for (std::int64_t i = 0; i < kPages * kPageSize; ++i) {
    fill(plain.row<std::uint16_t>(i / kPageSize, i % kPageSize), 512, Dtype::kBF16);
  }
  const std::vector<std::int32_t> table = {4, 0, -1, 2, 99, 5, 1, 1, 3}, ends = {0, 12, 12, 31};
  Tensor pages(executor_, Dtype::kI32, {3, 3}), sums(executor_, Dtype::kI32, {4}),
      pairs(executor_, Dtype::kI32, {2, 2});
  pages.set(table);
  sums.set(ends);
  pairs.set(std::vector<std::int32_t>{4, 0, 1, 5});
  pages.upload();
  sums.upload();
  plain.upload();
  for (const LatentFormat* format : records(512)) {
    Tensor cache = cache_of(*format, kPages, kPageSize, 16), other = cache_of(*format, kPages, kPageSize, 48);
    ASSERT_TRUE(convert_cache(plain.view(), cache.upload(), executor_, {}, {}, {}, said_as(*format)).ok());
    cache.download();
    ASSERT_TRUE(copy_pages(cache.view(), other.upload(), pairs.upload(), executor_).ok());
    other.download();
    for (const auto& [from, to] : {std::pair{4, 0}, {1, 5}}) {
      for (int i = 0; i < kPageSize; ++i) {
        const std::int64_t a = from * kPageSize + i, b = to * kPageSize + i;
        EXPECT_TRUE(std::equal(data(*format, cache, a), data(*format, cache, a) + format->data_bytes,
                               data(*format, other, b)));
        EXPECT_TRUE(std::equal(scales(*format, cache, a), scales(*format, cache, a) + format->scale_bytes,
                               scales(*format, other, b)));
      }
    }
    for (Dtype dtype : {Dtype::kU8, Dtype::kBF16, Dtype::kF16}) {
      const std::int64_t last = dtype == Dtype::kU8 ? format->token_bytes() : 512;
      Tensor out(executor_, dtype, {31, 1, last}, 16);
      const Status status = gather_cache(cache.view(), pages.view(), sums.view(), {}, out.upload(), executor_,
                                         {}, said_as(*format));
      ASSERT_TRUE(status.ok()) << status.message();
      out.download();
      for (int row = 0; row < 31; ++row) {
        const int request = row < 12 ? 0 : 2, token = row - ends[request];
        const int page = token / 5 < 3 ? table[request * 3 + token / 5] : -1;
        const std::uint8_t* got = out.row(row);
        if (page < 0 || page >= kPages) {
          EXPECT_TRUE(std::all_of(got, got + last * size_of(dtype), [](std::uint8_t x) { return x == 0; }))
              << row;
          continue;
        }
        const std::int64_t slot = page * kPageSize + token % 5;
        const std::uint8_t *bytes = data(*format, cache, slot), *its_scales = scales(*format, cache, slot);
        if (dtype == Dtype::kU8) {
          EXPECT_TRUE(std::equal(bytes, bytes + format->data_bytes, got)) << format->name;
          if (format->apart()) {
            EXPECT_TRUE(std::equal(its_scales, its_scales + format->scale_bytes, got + format->data_bytes));
          }
          continue;
        }
        const std::vector<float> values = read(*format, bytes, its_scales);
        Row halves(512);
        for (int d = 0; d < 512; ++d) halves[d] = from_float(values[d], dtype);
        expect_same(out.row<std::uint16_t>(row), halves.data(), 512, dtype);
      }
    }
  }
}

TEST_P(KvCacheRecords, WhatIsLeftOpenIsRefused) {
  Tensor plain(executor_, Dtype::kBF16, {2, 4, 1, 512}), cache(executor_, Dtype::kU8, {2, 4, 1, 528});
  const auto refused = [&](const CacheFormat& said, const char* words) {
    const Status status = convert_cache(plain.upload(), cache.upload(), executor_, {}, {}, {}, said);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  refused({}, "kv_format mxfp8_528 with scales 'token' or 'page', or fp8_528 is expected");
  refused({.format = KvFormat::kMxfp8_528}, "scales is missing");
  refused({.format = KvFormat::kFp8_656}, "its last dimension is 656");
  refused({.format = KvFormat::kPlain}, "that is for bf16 and fp16");
  Tensor wide(executor_, Dtype::kBF16, {2, 4, 1, 576});
  const Status status =
      convert_cache(wide.upload(), cache.upload(), executor_, {}, {}, {}, {.format = KvFormat::kFp8_528});
  EXPECT_NE(status.message().find("one KV head of 512 elements would fit"), std::string::npos)
      << status.message();
  Tensor fp4(executor_, Dtype::kU8, {2, 4, 1, 288});
  const Status floor = convert_cache(
      plain.view(), fp4.upload(), executor_, {}, {}, {},
      {.format = KvFormat::kNvfp4_288, .scales = ScalePlace::kToken, .floor = ScaleFloor::kScale});
  EXPECT_NE(floor.message().find("scale_floor is scale"), std::string::npos) << floor.message();
}

}  // namespace
}  // namespace flashlatent
