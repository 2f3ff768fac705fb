// Which tokens and pages are the same, and the latents that follow from it.
#include "serve/content.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>
#include <vector>

#include "core/element.h"
#include "serve/latents.h"
#include "serve_traces.h"

namespace flashlatent::serve {
namespace {

using Name = std::tuple<RowKind, std::int64_t, std::int64_t>;

Name name_of(const io::TraceRequest& r, std::int64_t index, int position) {
  const RowName name = token_name(r, index, position);
  return {name.kind, name.stream, name.position};
}

TEST(TokenName, SharedUnderAHashIdAndOwnElsewhere) {
  const io::TraceRequest a = request(1500, 20, {7, 8, 9}), b = request(900, 20, {7, 8});
  EXPECT_EQ(name_of(a, 0, 0), name_of(b, 1, 0));
  EXPECT_EQ(name_of(a, 0, 899), name_of(b, 1, 899));  // the last block of b is partly filled
  EXPECT_NE(name_of(a, 0, 900), name_of(b, 1, 900));  // b has generated this one
  EXPECT_NE(name_of(a, 0, 1500), name_of(a, 1, 1500));
  EXPECT_NE(name_of(a, 0, 511), name_of(a, 0, 512));
  // A prompt may be longer than its hash ids say.
  const io::TraceRequest c = request(1500, 20, {7});
  EXPECT_EQ(name_of(a, 0, 511), name_of(c, 1, 511));
  EXPECT_NE(name_of(a, 0, 512), name_of(c, 1, 512));
}

TEST(PageContents, EqualIdsExactlyForEqualTokens) {
  const std::vector<io::TraceRequest> trace = random_trace(12, 3000, 5, 1);
  for (int page_size : {1, 16, 48, 64, 100, 512, 700, 1024}) {
    SCOPED_TRACE(page_size);
    PageContents contents(page_size);
    std::vector<std::pair<PagePool::ContentId, std::vector<Name>>> pages;
    for (std::size_t i = 0; i < trace.size(); ++i) {
      const auto ids = contents.of(trace[i]);
      const bool hashed = !trace[i].hash_ids.empty();
      ASSERT_EQ(ids.size(), hashed ? trace[i].input_length / page_size : 0U);
      for (std::size_t page = 0; page < ids.size(); ++page) {
        if (page_size == 1 && page % 97 != 0) continue;  // enough
        std::vector<Name> names;
        for (int t = 0; t < page_size; ++t) {
          names.push_back(
              name_of(trace[i], static_cast<std::int64_t>(i), static_cast<int>(page) * page_size + t));
        }
        pages.emplace_back(ids[page], std::move(names));
      }
    }
    int equal = 0;
    for (const auto& a : pages) {
      for (const auto& b : pages) {
        ASSERT_EQ(a.first == b.first, a.second == b.second);
        equal += a.first == b.first ? 1 : 0;
      }
    }
    EXPECT_GT(equal, static_cast<int>(pages.size()));  // pages of different requests among them
  }
}

TEST(Latents, FollowFromSeedAndName) {
  const RowName name{RowKind::kSharedToken, 3, 4, 5};
  auto row = [](std::uint64_t seed, RowName of, Dtype dtype = Dtype::kBF16, std::size_t size = 576) {
    std::vector<std::uint16_t> values(size);
    fill_random(values, dtype, 1.0F, seed, of);
    return values;
  };
  EXPECT_EQ(row(1, name), row(1, name));
  std::set<std::vector<std::uint16_t>> different = {row(1, name), row(2, name)};
  for (const RowName& other :
       {RowName{RowKind::kOwnToken, 3, 4, 5}, RowName{RowKind::kSharedToken, 4, 4, 5},
        RowName{RowKind::kSharedToken, 3, 5, 5}, RowName{RowKind::kSharedToken, 3, 4, 6},
        RowName{RowKind::kSharedToken, 4, 3, 5}}) {
    different.insert(row(1, other));
  }
  EXPECT_EQ(different.size(), 7U);
  // A row's length does not matter to its beginning, nor need it be a multiple of four.
  std::vector<std::uint16_t> beginning = row(1, name);
  beginning.resize(573);
  EXPECT_EQ(row(1, name, Dtype::kBF16, 573), beginning);
}

TEST(Latents, AreUniform) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    constexpr int kCount = 100'000;
    std::vector<std::uint16_t> values(kCount);
    fill_random(values, dtype, 4.0F, 9, {RowKind::kQuery, 1, 2, 0});
    double sum = 0, squares = 0;
    for (std::uint16_t bits : values) {
      const double x = to_float(bits, dtype);
      ASSERT_LE(std::abs(x), 4.0);
      sum += x;
      squares += x * x;
    }
    // The standard errors of these two are 0.0073 and 0.015.
    EXPECT_NEAR(sum / kCount, 0, 0.04);
    EXPECT_NEAR(squares / kCount, 16.0 / 3, 0.08);
  }
}

}  // namespace
}  // namespace flashlatent::serve
