// Operations on KV caches, on every backend that is there, against conversions by the definition.
#include "flashlatent/kv_cache.h"

#include <functional>
#include <numeric>
#include <random>

#include "contracts.h"
#include "device_tensor.h"
#include "fp8_tokens.h"

namespace flashlatent {
namespace {

std::int64_t last_of(Dtype dtype, std::int64_t d) {
  return dtype == Dtype::kU8 ? fp8_656::kTokenBytes : d;
}

class KvCache : public Contracts {
 protected:
  /// Numbers of every kind: normal ones, zeros, huge ones, NaN and infinities.
  void fill(std::uint16_t* row, std::int64_t count, Dtype dtype) {
    std::normal_distribution<float> normal;
    const int kind = static_cast<int>(engine_() % 5);
    for (std::int64_t i = 0; i < count; ++i) {
      const bool rare = engine_() % 40 == 0;
      row[i] = from_float(kind == 0 ? 0.0F : normal(engine_), dtype);
      if (kind == 1 && rare) row[i] = static_cast<std::uint16_t>(engine_());
      if (kind == 2 && rare) row[i] = from_float(1e4F * normal(engine_), dtype);
      if (kind == 3) row[i] = from_float(1e-4F * normal(engine_), dtype);
    }
  }
  /// A token of any format.
  void fill_token(std::uint8_t* token, Dtype dtype, std::int64_t d) {
    if (dtype != Dtype::kU8) return fill(reinterpret_cast<std::uint16_t*>(token), d, dtype);
    Row row(fp8_656::kDim);
    fill(row.data(), fp8_656::kDim, Dtype::kBF16);
    const Bytes bytes = quantised(row.data(), row.data() + fp8_656::kLatentDim, Dtype::kBF16);
    std::copy(bytes.begin(), bytes.end(), token);
    const float other = 0.013F;  // a scale that is no power of two
    std::memcpy(token + fp8_656::kScaleOffset + 4, &other, sizeof(other));
  }
  void fill_cache(Tensor& cache, std::int64_t pages, std::int64_t page_size, std::int64_t heads) {
    for (std::int64_t slot = 0; slot < pages * page_size; ++slot) {
      for (std::int64_t head = 0; head < heads; ++head) {
        fill_token(cache.row(slot / page_size, slot % page_size, head), cache.dtype(), cache.last());
      }
    }
  }

  /// Is `got` the token `from`, converted by the definition?
  static void expect_token(const std::uint8_t* got, Dtype dtype, const std::uint8_t* from, Dtype from_dtype,
                           std::int64_t d) {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(got);
    const auto* from_halves = reinterpret_cast<const std::uint16_t*>(from);
    if (dtype == Dtype::kU8 && from_dtype == Dtype::kU8) {
      ASSERT_TRUE(std::equal(got, got + fp8_656::kTokenBytes, from));
    } else if (dtype == Dtype::kU8) {
      expect_same_token(got, quantised(from_halves, from_halves + fp8_656::kLatentDim, from_dtype));
    } else if (from_dtype == Dtype::kU8) {
      expect_same(halves, dequantised(from, dtype).data(), fp8_656::kDim, dtype);
    } else {
      Row expected(d);
      for (std::int64_t i = 0; i < d; ++i) expected[i] = converted(from_halves[i], from_dtype, dtype);
      expect_same(halves, expected.data(), d, dtype);
    }
  }

  void expect_refused(const Status& status, const std::string& name) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(status.message().find(name), 0U) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }

  std::mt19937 engine_{3};
};

INSTANTIATE_TEST_SUITE_P(Backends, KvCache, kBackends, backend_name);

constexpr Dtype kFormats[] = {Dtype::kBF16, Dtype::kF16, Dtype::kU8};

TEST_P(KvCache, AppendWritesTheNamedSlotsAlone) {
  constexpr std::int64_t kPages = 5, kPageSize = 7, kSlots = kPages * kPageSize, kTokens = 20;
  for (Dtype from : {Dtype::kBF16, Dtype::kF16}) {
    for (Dtype to : kFormats) {
      for (Dtype integers : {Dtype::kI32, Dtype::kI64}) {
        for (int padding : {0, 16}) {
          Tensor latent(executor_, from, {kTokens, 512}, padding);
          Tensor rope(executor_, from, {kTokens, 64}, padding);
          Tensor cache(executor_, to, {kPages, kPageSize, 1, last_of(to, 576)}, padding);
          for (int i = 0; i < kTokens; ++i) {
            fill(latent.row<std::uint16_t>(i), 512, from);
            fill(rope.row<std::uint16_t>(i), 64, from);
          }
          std::vector<std::int64_t> slots(kSlots);
          std::iota(slots.begin(), slots.end(), 0);
          std::shuffle(slots.begin(), slots.end(), engine_);
          slots.resize(kTokens);
          slots[3] = slots[11] = -1;
          slots[4] = std::numeric_limits<std::int32_t>::min();
          Tensor mapping(executor_, integers, {kTokens});
          integers == Dtype::kI64 ? mapping.set(slots)
                                  : mapping.set(std::vector<std::int32_t>(slots.begin(), slots.end()));
          Bytes expected = cache.bytes();
          const Status status =
              append_latent(latent.upload(), rope.upload(), mapping.upload(), cache.upload(), executor_);
          ASSERT_TRUE(status.ok()) << status.message();
          cache.download();
          for (int i = 0; i < kTokens; ++i) {
            if (slots[i] < 0) continue;
            Row row(latent.row<std::uint16_t>(i), latent.row<std::uint16_t>(i) + 512);
            row.insert(row.end(), rope.row<std::uint16_t>(i), rope.row<std::uint16_t>(i) + 64);
            std::uint8_t* token = cache.row(slots[i] / kPageSize, slots[i] % kPageSize);
            expect_token(token, to, reinterpret_cast<const std::uint8_t*>(row.data()), from, 576);
            std::fill_n(token, cache.last() * size_of(to), kUntouched);
          }
          EXPECT_EQ(cache.bytes(), expected) << "something else was written";
        }
      }
    }
  }
}

TEST_P(KvCache, AppendTakesOtherDimensions) {
  Tensor latent(executor_, Dtype::kBF16, {3, 104});
  Tensor cache(executor_, Dtype::kF16, {2, 4, 1, 104});
  Tensor mapping(executor_, Dtype::kI32, {3});
  mapping.set<std::int32_t>({7, 0, 2});
  for (int i = 0; i < 3; ++i) fill(latent.row<std::uint16_t>(i), 104, Dtype::kBF16);
  const Status status = append_latent(latent.upload(), {}, mapping.upload(), cache.upload(), executor_);
  ASSERT_TRUE(status.ok()) << status.message();
  cache.download();
  expect_token(cache.row(1, 3), Dtype::kF16, latent.row(0), Dtype::kBF16, 104);
  expect_token(cache.row(0, 2), Dtype::kF16, latent.row(2), Dtype::kBF16, 104);
}

TEST_P(KvCache, ConvertEveryPairOfFormats) {
  constexpr std::int64_t kPages = 3, kPageSize = 5;
  for (Dtype from : kFormats) {
    for (Dtype to : kFormats) {
      for (int padding : {0, 16}) {
        const bool fp8 = from == Dtype::kU8 || to == Dtype::kU8;
        const std::int64_t heads = fp8 ? 1 : 3, d = fp8 ? 576 : 104;
        Tensor source(executor_, from, {kPages, kPageSize, heads, last_of(from, d)}, padding);
        Tensor target(executor_, to, {kPages, kPageSize, heads, last_of(to, d)}, 2 * padding);
        fill_cache(source, kPages, kPageSize, heads);
        const Status status = convert_cache(source.upload(), target.upload(), executor_);
        ASSERT_TRUE(status.ok()) << status.message();
        target.download();
        for (std::int64_t i = 0; i < kPages * kPageSize; ++i) {
          for (std::int64_t head = 0; head < heads; ++head) {
            expect_token(target.row(i / kPageSize, i % kPageSize, head), to,
                         source.row(i / kPageSize, i % kPageSize, head), from, source.last());
          }
        }
      }
    }
  }
}

TEST_P(KvCache, WhatWasReadOnceIsNeverRoundedAgain) {
  Tensor plain(executor_, Dtype::kBF16, {2, 16, 1, 576}), fp8(executor_, Dtype::kU8, {2, 16, 1, 656});
  Tensor once(executor_, Dtype::kBF16, {2, 16, 1, 576}), twice(executor_, Dtype::kBF16, {2, 16, 1, 576});
  fill_cache(plain, 2, 16, 1);
  for (int i = 0; i < 2 * 16 * 576; ++i) {  // from 2^127 on e4m3 * scale may overflow
    std::uint16_t& x = plain.row<std::uint16_t>(0)[i];
    if (std::isfinite(bf16_to_float(x)) && std::abs(bf16_to_float(x)) >= 0x1p127F) x = 0;
  }
  const TensorView views[] = {plain.upload(), fp8.upload(), once.upload(), twice.upload()};
  for (auto [from, to] : {std::pair{0, 1}, {1, 2}, {2, 1}, {1, 3}}) {
    ASSERT_TRUE(convert_cache(views[from], views[to], executor_).ok());
  }
  once.download();
  twice.download();
  EXPECT_NE(once.bytes(), plain.bytes());
  expect_same(twice.row<std::uint16_t>(0), once.row<std::uint16_t>(0), 2 * 16 * 576, Dtype::kBF16);
}

TEST_P(KvCache, GatherFollowsThePageTable) {
  constexpr std::int64_t kPages = 6, kPageSize = 5;
  const std::vector<std::int32_t> table = {4, 0, -1, 2, 99, 5, 1, 1, 3};  // 3 requests of 3 pages
  const std::vector<std::int32_t> ends = {0, 12, 12, 31}, first = {2, 0, 1};
  for (Dtype from : kFormats) {
    for (Dtype to : kFormats) {
      if (to == Dtype::kU8 && from != Dtype::kU8) continue;
      for (bool from_zero : {true, false}) {
        const std::int64_t heads = from == Dtype::kU8 ? 1 : 2, d = from == Dtype::kU8 ? 576 : 104;
        Tensor cache(executor_, from, {kPages, kPageSize, heads, last_of(from, d)}, 16);
        fill_cache(cache, kPages, kPageSize, heads);
        Tensor pages(executor_, Dtype::kI32, {3, 3}), sums(executor_, Dtype::kI32, {4}),
            begins(executor_, Dtype::kI32, {3}), out(executor_, to, {31, heads, last_of(to, d)}, 8);
        pages.set(table);
        sums.set(ends);
        begins.set(first);
        const Status status =
            gather_cache(cache.upload(), pages.upload(), sums.upload(),
                         from_zero ? ConstTensorView() : begins.upload(), out.upload(), executor_);
        ASSERT_TRUE(status.ok()) << status.message();
        out.download();
        for (int row = 0; row < 31; ++row) {
          const int request = row < 12 ? 0 : 2;
          const int token = row - ends[request] + (from_zero ? 0 : first[request]);
          const int page = token / kPageSize < 3 ? table[request * 3 + token / kPageSize] : -1;
          for (std::int64_t head = 0; head < heads; ++head) {
            if (page < 0 || page >= kPages) {
              const Bytes zeros(out.last() * size_of(to));
              ASSERT_TRUE(std::equal(zeros.begin(), zeros.end(), out.row(row, head))) << row;
            } else {
              expect_token(out.row(row, head), to, cache.row(page, token % kPageSize, head), from,
                           cache.last());
            }
          }
        }
      }
    }
  }
}

/// Requests enough for a search of several steps, some without rows.
TEST_P(KvCache, GathersOfManyRequests) {
  constexpr int kPages = 40, kPageSize = 3, kColumns = 4;
  Tensor source(executor_, Dtype::kBF16, {kPages, kPageSize, 1, 576});
  fill_cache(source, kPages, kPageSize, 1);
  for (int requests : {32, 33, 150, 1100}) {
    SCOPED_TRACE(requests);
    std::vector<std::int32_t> table(requests * kColumns), ends = {0};
    for (std::int32_t& page : table) page = static_cast<std::int32_t>(engine_() % kPages);
    for (int i = 0; i < requests; ++i) {
      ends.push_back(ends.back() + static_cast<std::int32_t>(engine_() % (kColumns * kPageSize)));
    }
    Tensor pages(executor_, Dtype::kI32, {requests, kColumns}), sums(executor_, Dtype::kI32, {requests + 1});
    pages.set(table);
    sums.set(ends);
    Tensor rows(executor_, Dtype::kBF16, {ends.back(), 1, 576}, 8);
    const Status status =
        gather_cache(source.upload(), pages.upload(), sums.upload(), {}, rows.upload(), executor_);
    ASSERT_TRUE(status.ok()) << status.message();
    rows.download();
    for (int request = 0; request < requests; ++request) {
      for (int row = ends[request]; row < ends[request + 1]; ++row) {
        SCOPED_TRACE(row);
        const int token = row - ends[request];
        const int page = table[request * kColumns + token / kPageSize];
        expect_token(rows.row(row), Dtype::kBF16, source.row(page, token % kPageSize), Dtype::kBF16, 576);
      }
    }
  }
}

/// More tokens than a GPU has warps, and not a multiple of four.
TEST_P(KvCache, OfManyTokens) {
  constexpr std::int64_t kPages = 197, kPageSize = 31, kSlots = kPages * kPageSize, kColumns = 70;
  std::vector<std::int64_t> slots(kSlots);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin() + kSlots / 2, slots.end(), engine_);
  for (std::int64_t i = 0; i < kSlots; i += 37) slots[i] = -1 - i;
  Tensor mapping(executor_, Dtype::kI64, {kSlots});
  mapping.set(slots);
  // Three requests; the last one goes on behind its pages.
  std::vector<std::int32_t> table(3 * kColumns);
  for (std::int32_t& page : table) page = static_cast<std::int32_t>(engine_() % (kPages + 2)) - 1;
  const std::vector<std::int32_t> ends = {0, 2101, 2101, 2101 + kColumns * kPageSize + 9};
  Tensor pages(executor_, Dtype::kI32, {3, kColumns}), sums(executor_, Dtype::kI32, {4});
  pages.set(table);
  sums.set(ends);

  for (Dtype from : kFormats) {
    const std::int64_t last = last_of(from, 576);
    Tensor source(executor_, from, {kPages, kPageSize, 1, last});
    fill_cache(source, kPages, kPageSize, 1);
    auto at = [](Tensor& cache, std::int64_t slot) { return cache.row(slot / kPageSize, slot % kPageSize); };
    for (Dtype to : kFormats) {
      SCOPED_TRACE(std::string(to_string(from)) + " to " + to_string(to));
      Tensor converted(executor_, to, {kPages, kPageSize, 1, last_of(to, 576)}, 16);
      Status status = convert_cache(source.upload(), converted.upload(), executor_);
      ASSERT_TRUE(status.ok()) << status.message();
      converted.download();
      for (std::int64_t slot = 0; slot < kSlots; ++slot) {
        expect_token(at(converted, slot), to, at(source, slot), from, last);
      }

      if (from != Dtype::kU8) {  // the source's rows as new tokens
        Tensor cache(executor_, to, {kPages, kPageSize, 1, last_of(to, 576)}, 16);
        TensorView latent = source.view();
        latent.rank = 2;
        latent.shape[0] = kSlots;
        latent.shape[1] = 512;
        latent.strides[0] = 576;
        latent.strides[1] = 1;
        TensorView rope = latent;
        rope.shape[1] = 64;
        rope.data = static_cast<std::uint16_t*>(latent.data) + 512;
        const Bytes untouched(last_of(to, 576) * size_of(to), kUntouched);
        status = append_latent(latent, rope, mapping.upload(), cache.upload(), executor_);
        ASSERT_TRUE(status.ok()) << status.message();
        cache.download();
        std::vector<std::int64_t> token_of(kSlots, -1);
        for (std::int64_t i = 0; i < kSlots; ++i) {
          if (slots[i] >= 0) token_of[slots[i]] = i;
        }
        for (std::int64_t slot = 0; slot < kSlots; ++slot) {
          if (token_of[slot] < 0) {
            ASSERT_TRUE(std::equal(untouched.begin(), untouched.end(), at(cache, slot))) << slot;
          } else {
            expect_token(at(cache, slot), to, at(source, token_of[slot]), from, last);
          }
        }
      }

      if (to == Dtype::kU8 && from != Dtype::kU8) continue;
      Tensor rows(executor_, to, {ends.back(), 1, last_of(to, 576)}, 8);
      status = gather_cache(source.upload(), pages.upload(), sums.upload(), {}, rows.upload(), executor_);
      ASSERT_TRUE(status.ok()) << status.message();
      rows.download();
      const Bytes zeros(rows.last() * size_of(to));
      for (int row = 0; row < ends.back(); ++row) {
        const int request = row < ends[1] ? 0 : 2, token = row - ends[request];
        const int column = token / static_cast<int>(kPageSize);
        const int page = column < kColumns ? table[request * kColumns + column] : -1;
        if (page < 0 || page >= kPages) {
          ASSERT_TRUE(std::equal(zeros.begin(), zeros.end(), rows.row(row))) << row;
        } else {
          expect_token(rows.row(row), to, source.row(page, token % kPageSize), from, last);
        }
      }
    }
  }
}

TEST_P(KvCache, OfManyTokensOfOtherDimensions) {
  constexpr std::int64_t kPages = 101, kPageSize = 17, kHeads = 2;
  for (std::int64_t d : {104, 100, 1160}) {  // 100 is not a multiple of 16 bytes
    for (Dtype to : {Dtype::kBF16, Dtype::kF16}) {
      Tensor source(executor_, Dtype::kBF16, {kPages, kPageSize, kHeads, d});
      Tensor target(executor_, to, {kPages, kPageSize, kHeads, d}, 8);
      fill_cache(source, kPages, kPageSize, kHeads);
      const Status status = convert_cache(source.upload(), target.upload(), executor_);
      ASSERT_TRUE(status.ok()) << status.message();
      target.download();
      for (std::int64_t i = 0; i < kPages * kPageSize * kHeads; ++i) {
        const std::int64_t slot = i / kHeads, page = slot / kPageSize, offset = slot % kPageSize;
        expect_token(target.row(page, offset, i % kHeads), to, source.row(page, offset, i % kHeads),
                     Dtype::kBF16, d);
      }
    }
  }
}

TEST_P(KvCache, CopyPagesInOneCacheAndBetweenTwo) {
  constexpr std::int64_t kPages = 7, kPageSize = 4;
  for (Dtype dtype : kFormats) {
    for (Dtype integers : {Dtype::kI32, Dtype::kI64}) {
      const std::vector<std::int64_t> list = {3, 0, 6, 2, 3, 5};
      Tensor pairs(executor_, integers, {3, 2});
      integers == Dtype::kI64 ? pairs.set(list)
                              : pairs.set(std::vector<std::int32_t>(list.begin(), list.end()));
      const std::int64_t heads = dtype == Dtype::kU8 ? 1 : 2, last = last_of(dtype, 104);
      Tensor cache(executor_, dtype, {kPages, kPageSize, heads, last}, 16);
      fill_cache(cache, kPages, kPageSize, heads);
      Tensor other(executor_, dtype, {6, kPageSize, heads, last}, 32);
      const Bytes before = cache.bytes(), other_before = other.bytes();
      const TensorView view = cache.upload(), other_view = other.upload();
      ASSERT_TRUE(copy_pages(view, other_view, pairs.upload(), executor_).ok());
      ASSERT_TRUE(copy_pages(view, view, pairs.upload(), executor_).ok());
      other.download();
      cache.download();
      for (std::size_t i = 0; i < list.size(); i += 2) {
        for (std::int64_t token = 0; token < kPageSize; ++token) {
          for (std::int64_t head = 0; head < heads; ++head) {
            const std::size_t bytes = last * size_of(dtype);
            const std::uint8_t* source = cache.row(list[i], token, head);
            for (Tensor* to : {&cache, &other}) {
              std::uint8_t* row = to->row(list[i + 1], token, head);
              ASSERT_TRUE(std::equal(row, row + bytes, source));
              const auto offset = row - to->row(0);
              std::copy_n((to == &cache ? before : other_before).begin() + offset, bytes, row);
            }
          }
        }
      }
      EXPECT_EQ(cache.bytes(), before) << "something else was written";
      EXPECT_EQ(other.bytes(), other_before) << "something else was written";
    }
  }
}

TEST_P(KvCache, CopyPagesOfBytes) {
  constexpr std::int64_t kPages = 5, kPageBytes = 1072;
  Tensor cache(executor_, Dtype::kU8, {kPages, kPageBytes}), pairs(executor_, Dtype::kI32, {2, 2});
  for (std::int64_t page = 0; page < kPages; ++page) {
    std::fill_n(cache.row(page), kPageBytes, static_cast<std::uint8_t>(page + 1));
  }
  pairs.set<std::int32_t>({4, 0, 1, 3});
  const TensorView view = cache.upload();
  const Status status = copy_pages(view, view, pairs.upload(), executor_);
  ASSERT_TRUE(status.ok()) << status.message();
  cache.download();
  constexpr int kExpected[kPages] = {5, 2, 3, 2, 5};
  for (std::int64_t page = 0; page < kPages; ++page) {
    EXPECT_EQ(std::count(cache.row(page), cache.row(page) + kPageBytes, kExpected[page]), kPageBytes);
  }
}

// What only a host that reads slots and pages can see.
TEST_P(KvCache, CpuRefusesWrongSlotsBeforeItWrites) {
  if (on_gpu()) GTEST_SKIP() << "slots and pages are not read by the host";
  Tensor latent(executor_, Dtype::kBF16, {3, 512}), rope(executor_, Dtype::kBF16, {3, 64});
  for (int i = 0; i < 3; ++i) fill(latent.row<std::uint16_t>(i), 512, Dtype::kBF16);
  Tensor cache(executor_, Dtype::kU8, {2, 4, 1, 656});
  Tensor mapping(executor_, Dtype::kI32, {3});
  mapping.set<std::int32_t>({1, -1, 8});
  const Bytes before = cache.bytes();
  const Status refused =
      append_latent(latent.upload(), rope.upload(), mapping.upload(), cache.upload(), executor_);
  expect_refused(refused, "slot_mapping[2] is 8; the cache has 8 slots");
  cache.download();
  EXPECT_EQ(cache.bytes(), before);

  mapping.set<std::int32_t>({5, 1, 5});  // the later one stays
  ASSERT_TRUE(
      append_latent(latent.upload(), rope.upload(), mapping.upload(), cache.upload(), executor_).ok());
  cache.download();
  expect_same_token(cache.row(1, 1),
                    quantised(latent.row<std::uint16_t>(2), rope.row<std::uint16_t>(2), Dtype::kBF16));

  Tensor pairs(executor_, Dtype::kI32, {2, 2});
  const TensorView view = cache.upload();
  const std::pair<std::vector<std::int32_t>, const char*> lists[] = {
      {{0, 1, 2, 0}, "pairs[1][0] is 2; from has 2 pages"},
      {{0, 1, 1, -1}, "pairs[1][1] is -1; to has 2 pages"},
      {{0, 1, 0, 1}, "pairs has page 1 as a destination twice"},
      {{0, 1, 1, 0}, "pairs has page 0 both as a source and a destination"}};
  const Bytes filled = cache.bytes();
  for (const auto& [list, message] : lists) {
    pairs.set(list);
    expect_refused(copy_pages(view, view, pairs.upload(), executor_), message);
    cache.download();
    EXPECT_EQ(cache.bytes(), filled);
  }

  Tensor table(executor_, Dtype::kI32, {2, 1}), sums(executor_, Dtype::kI32, {3}),
      first(executor_, Dtype::kI32, {2}), out(executor_, Dtype::kU8, {4, 1, 656});
  table.set<std::int32_t>({0, 1});
  for (const auto& list :
       std::vector<std::vector<std::int32_t>>{{1, 2, 4}, {0, 3, 2}, {0, 2, 3}, {0, 2, 5}}) {
    sums.set(list);
    expect_refused(gather_cache(view, table.upload(), sums.upload(), {}, out.upload(), executor_),
                   "cu_seqlens[");
  }
  sums.set<std::int32_t>({0, 2, 4});
  first.set<std::int32_t>({0, -1});
  expect_refused(gather_cache(view, table.upload(), sums.upload(), first.upload(), out.upload(), executor_),
                 "first_token[1] is -1");
}

TEST_P(KvCache, TensorsThatDoNotFitAreNamed) {
  Tensor bf16_tensor(executor_, Dtype::kBF16, {2, 4, 1, 576}),
      fp8_tensor(executor_, Dtype::kU8, {2, 4, 1, 656});
  const TensorView bf16 = bf16_tensor.upload(), fp8 = fp8_tensor.upload();
  const Device device = bf16.device;
  auto like = [&](Dtype dtype, std::initializer_list<std::int64_t> shape) {
    return TensorView(bf16.data, dtype, shape, device);  // large enough for all of these
  };
  const TensorView latent = like(Dtype::kBF16, {3, 512}), rope = like(Dtype::kBF16, {3, 64}),
                   slots = like(Dtype::kI32, {3});
  TensorView wrong_device = fp8, strided = bf16;
  wrong_device.device = {DeviceType::kCuda, 7};
  strided.strides[3] = 2;

  expect_refused(append_latent(latent, rope, slots, {}, executor_), "kv_cache is missing");
  expect_refused(append_latent(latent, rope, slots, wrong_device, executor_), "kv_cache");
  expect_refused(append_latent(latent, rope, slots, strided, executor_), "kv_cache");
  expect_refused(append_latent(latent, rope, slots, like(Dtype::kF32, {2, 4, 1, 576}), executor_),
                 "kv_cache");
  expect_refused(append_latent(latent, rope, slots, like(Dtype::kU8, {2, 4, 1, 640}), executor_), "kv_cache");
  expect_refused(append_latent(latent, rope, slots, like(Dtype::kBF16, {2, 0, 1, 576}), executor_),
                 "kv_cache");
  expect_refused(append_latent(latent, rope, slots, like(Dtype::kBF16, {2, 1, 2, 576}), executor_),
                 "kv_cache");
  expect_refused(append_latent({}, rope, slots, fp8, executor_), "latent is missing");
  expect_refused(append_latent(like(Dtype::kU8, {3, 512}), rope, slots, fp8, executor_), "latent");
  expect_refused(append_latent(like(Dtype::kBF16, {2, 512}), rope, slots, fp8, executor_), "latent");
  expect_refused(append_latent(like(Dtype::kBF16, {3, 576}), rope, slots, bf16, executor_), "latent");
  expect_refused(append_latent(latent, {}, slots, fp8, executor_), "rope is missing");
  expect_refused(append_latent(latent, like(Dtype::kF16, {3, 64}), slots, fp8, executor_), "rope");
  expect_refused(append_latent(latent, rope, like(Dtype::kF32, {3}), fp8, executor_), "slot_mapping");

  expect_refused(convert_cache({}, fp8, executor_), "from is missing");
  expect_refused(convert_cache(bf16, bf16, executor_), "to");
  expect_refused(convert_cache(bf16, like(Dtype::kU8, {2, 2, 1, 656}), executor_), "to");
  expect_refused(convert_cache(like(Dtype::kBF16, {2, 4, 1, 512}), fp8, executor_), "from");
  expect_refused(convert_cache(like(Dtype::kBF16, {2, 4, 2, 288}), fp8, executor_), "from");
  expect_refused(convert_cache(fp8, like(Dtype::kBF16, {2, 4, 1, 512}), executor_), "to");

  const TensorView table = like(Dtype::kI32, {1, 2}), sums = like(Dtype::kI32, {2}),
                   rows = like(Dtype::kBF16, {2, 1, 576});
  expect_refused(gather_cache(fp8, like(Dtype::kI64, {1, 2}), sums, {}, rows, executor_), "block_table");
  expect_refused(gather_cache(fp8, table, like(Dtype::kI32, {1}), {}, rows, executor_), "cu_seqlens");
  expect_refused(gather_cache(fp8, table, sums, like(Dtype::kI32, {2}), rows, executor_), "first_token");
  expect_refused(gather_cache(fp8, table, sums, {}, {}, executor_), "out is missing");
  expect_refused(gather_cache(fp8, table, sums, {}, like(Dtype::kF32, {2, 1, 576}), executor_), "out");
  expect_refused(gather_cache(bf16, table, sums, {}, like(Dtype::kU8, {2, 1, 656}), executor_), "out");
  expect_refused(gather_cache(fp8, table, sums, {}, like(Dtype::kBF16, {2, 1, 512}), executor_), "out");

  const TensorView pairs = like(Dtype::kI32, {1, 2});
  expect_refused(copy_pages(bf16, fp8, pairs, executor_), "to");
  expect_refused(copy_pages(bf16, like(Dtype::kBF16, {2, 2, 1, 576}), pairs, executor_), "to");
  expect_refused(copy_pages(bf16, bf16, like(Dtype::kI32, {1, 3}), executor_), "pairs");
}

}  // namespace
}  // namespace flashlatent
