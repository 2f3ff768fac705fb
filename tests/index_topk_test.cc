// index_topk() and its relatives, contract by contract, on every backend that this machine has.
#include "flashlatent/index_topk.h"
#include "core/e2m1.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/element.h"
#include "core/index_keys.h"
#include "core/return_if_error.h"
#include "runtime/compare_index.h"
#include "runtime/index_run.h"
#include "runtime/placed.h"
#include "runtime/random_index_case.h"

namespace flashlatent {
namespace {

using runtime::IndexRun;
using runtime::IndexScores;
using runtime::IndexSpec;
using runtime::RandomIndexCase;

class IndexTopk : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    executor_.backend = GetParam();
    const Status status = available(GetParam());
    if (!status.ok()) GTEST_SKIP() << status.message();
  }

  IndexRun run(const RandomIndexCase& made) {
    auto created = IndexRun::create(made.inputs, made.options, made.wanted, executor_);
    EXPECT_TRUE(created.ok()) << created.status().message();
    IndexRun result = std::move(*created);
    for (const Status& status : {result.run(), result.fetch()}) EXPECT_TRUE(status.ok()) << status.message();
    return result;
  }
  void expect_right(const IndexSpec& spec) {
    const RandomIndexCase made = runtime::make_index_case(spec, 3);
    const IndexRun result = run(made);
    const auto comparison = runtime::compare_index(made.inputs, made.options, result.results());
    EXPECT_TRUE(comparison.ok()) << runtime::to_string(comparison);
  }
  Executor executor_;
};

const std::int32_t* ints(const ConstTensorView& view) {
  return static_cast<const std::int32_t*>(view.data);
}

TEST_P(IndexTopk, ChoosesTheBestOfEachFormat) {
  for (IndexFormat format : {IndexFormat::kFp8_132, IndexFormat::kMxfp4_68}) {
    for (bool fp4_query : {false, true}) {
      for (int heads : {8, 32, 40, 64, 128}) {
        SCOPED_TRACE(std::string(to_string(format)) + (fp4_query ? " fp4 " : " ") + std::to_string(heads));
        expect_right({.format = format,
                      .fp4_query = fp4_query,
                      .lengths = {0, 1, 64, 400},
                      .query_tokens = 3,
                      .heads = heads,
                      .topk = 50});
      }
    }
  }
}

TEST_P(IndexTopk, DifficultScores) {
  for (IndexScores scores :
       {IndexScores::kUnit, IndexScores::kEqual, IndexScores::kNegative, IndexScores::kHuge,
        IndexScores::kNan, IndexScores::kRising, IndexScores::kSpread}) {
    for (IndexFormat format : {IndexFormat::kFp8_132, IndexFormat::kMxfp4_68}) {
      SCOPED_TRACE(std::string(to_string(scores)) + " " + to_string(format));
      expect_right({.format = format, .lengths = {300, 1000}, .topk = 200, .scores = scores});
    }
  }
}

TEST_P(IndexTopk, LengthsAroundTopk) {
  for (int topk : {1, 64, 2048}) {
    SCOPED_TRACE(topk);
    expect_right({.lengths = {topk - 1, topk, topk + 1, 2 * topk}, .heads = 32, .topk = topk});
  }
}

TEST_P(IndexTopk, WithoutScoresWhereAllTokensAreChosen) {
  // The longest context decides what the page table reaches: all tokens of all query tokens are chosen, then
  // those of some.
  for (int longest : {64, 700}) {
    for (bool invalid_pages : {false, true}) {
      SCOPED_TRACE(longest);
      RandomIndexCase made = runtime::make_index_case({.lengths = {0, 1, 63, 64, longest},
                                                       .query_tokens = 3,
                                                       .topk = 64,
                                                       .page_size = 16,
                                                       .invalid_pages = invalid_pages,
                                                       .scores = IndexScores::kNan},
                                                      3);
      made.wanted.scores = made.wanted.all_scores = false;
      const IndexRun result = run(made);
      const auto comparison = runtime::compare_index(made.inputs, made.options, result.results());
      EXPECT_TRUE(comparison.ok()) << runtime::to_string(comparison);
    }
  }
}

TEST_P(IndexTopk, RaggedQueriesAndWhatEachTokenSees) {
  expect_right({.lengths = {700, 1, 90}, .ragged_tokens = {9, 0, 90}, .topk = 100});
  IndexSpec spec{.lengths = {700, 1, 90}, .ragged_tokens = {9, 1, 33}, .causal = false, .topk = 100};
  spec.lengths_per_token = true;
  expect_right(spec);
  spec.ragged_tokens = {};
  spec.query_tokens = 11;
  expect_right(spec);
}

TEST_P(IndexTopk, PagesThatDoNotExistHaveNoTokens) {
  expect_right({.lengths = {700, 333}, .topk = 100, .page_size = 16, .invalid_pages = true});
}

TEST_P(IndexTopk, OddPagesAndStrides) {
  for (int page_size : {1, 5, 33, 64, 200}) {
    SCOPED_TRACE(page_size);
    expect_right(
        {.lengths = {500, 64}, .query_tokens = 2, .topk = 100, .page_size = page_size, .strided = true});
  }
}

TEST_P(IndexTopk, CandidatesAndBestBlocks) {
  for (int size : {8, 3}) {
    SCOPED_TRACE(size);
    expect_right(
        {.lengths = {0, 9, 3000}, .query_tokens = 2, .topk = 100, .candidates = 60, .candidate_block = size});
    expect_right({.lengths = {0, 9, 3000},
                  .query_tokens = 2,
                  .topk = 100,
                  .best_blocks = 60,
                  .candidate_block = size});
  }
}

TEST_P(IndexTopk, SlotsByATableOfTheirOwn) {
  expect_right({.lengths = {100, 300}, .topk = 64, .slot_page_size = 2});
}

TEST_P(IndexTopk, SlotsThatDoNotExistAreMinusOne) {
  RandomIndexCase made = runtime::make_index_case({.lengths = {4}, .topk = 6, .slot_page_size = 1}, 0);
  std::vector<std::int32_t> table = {7, -1, 2147483647};
  made.inputs.slot_table = {table.data(), Dtype::kI32, {1, 3}};
  IndexRun result = run(made);
  const std::int32_t* indices = ints(result.results().indices);
  EXPECT_EQ(std::vector<std::int32_t>(indices, indices + 6),
            (std::vector<std::int32_t>{7, -1, 2147483647, -1, -1, -1}));
  EXPECT_EQ(*ints(result.results().counts), 4);
  made.options.slot_page_size = 2;  // entry 1 * 2 + 1 is 2^32 - 1
  made.inputs.slot_table = {table.data() + 2, Dtype::kI32, {1, 1}};
  result = run(made);
  EXPECT_EQ(ints(result.results().indices)[1], -1);
}

TEST_P(IndexTopk, ACandidateThatIsNamedTwiceCountsTwice) {
  RandomIndexCase made = runtime::make_index_case({.lengths = {64}, .topk = 10, .candidates = 2}, 0);
  std::vector<std::int32_t> twice = {3, 3};
  made.inputs.candidates = {twice.data(), Dtype::kI32, {1, 1, 2}};
  const IndexRun result = run(made);
  EXPECT_EQ(*ints(result.results().counts), 10);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ints(result.results().indices)[i] / 8, 3);
}

TEST_P(IndexTopk, OfEqualScoresTheFirstAreChosen) {
  const IndexRun result =
      run(runtime::make_index_case({.lengths = {1000}, .topk = 70, .scores = IndexScores::kEqual}, 0));
  for (int i = 0; i < 70; ++i) EXPECT_EQ(ints(result.results().indices)[i], i);
}

TEST_P(IndexTopk, ScoresDoNotDependOnTheBatch) {
  const IndexSpec spec{.lengths = {777}, .topk = 128};
  const RandomIndexCase alone = runtime::make_index_case(spec, 5);
  const IndexRun first = run(alone);
  // The same request behind another one, through a page table that names its pages twice.
  RandomIndexCase both = alone;
  const std::int64_t columns = alone.inputs.block_table.shape[1];
  std::vector<std::int32_t> table(2 * columns);
  for (int i = 0; i < 2; ++i)
    std::copy_n(ints(alone.inputs.block_table), columns, table.data() + i * columns);
  both.inputs.block_table = {table.data(), Dtype::kI32, {2, columns}};
  std::vector<std::int32_t> lengths = {300, 777};
  both.inputs.cache_seqlens = {lengths.data(), Dtype::kI32, {2}};
  std::vector<std::uint8_t> q(2 * 64 * 128);
  std::vector<float> weights(2 * 64);
  for (int i = 0; i < 2; ++i) {
    std::memcpy(q.data() + i * 64 * 128, alone.inputs.q.data, 64 * 128);
    std::memcpy(weights.data() + i * 64, alone.inputs.weights.data, 64 * sizeof(float));
  }
  both.inputs.q = {q.data(), Dtype::kU8, {2, 1, 64, 128}};
  both.inputs.weights = {weights.data(), Dtype::kF32, {2, 1, 64}};
  const IndexRun second = run(both);
  EXPECT_EQ(std::memcmp(first.results().scores.data,
                        static_cast<const float*>(second.results().scores.data) + 128, 128 * sizeof(float)),
            0);
  EXPECT_EQ(std::memcmp(first.results().indices.data, ints(second.results().indices) + 128, 128 * 4), 0);
}

TEST_P(IndexTopk, EmptyRequestsHaveNothing) {
  const IndexRun result = run(runtime::make_index_case({.lengths = {0, 0}, .topk = 5, .best_blocks = 3}, 0));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(ints(result.results().indices)[i], -1);
    EXPECT_EQ(static_cast<const float*>(result.results().scores.data)[i],
              -std::numeric_limits<float>::infinity());
  }
  for (int i = 0; i < 6; ++i) EXPECT_EQ(ints(result.results().best_blocks)[i], -1);
}

TEST_P(IndexTopk, RefusesWhatDoesNotFit) {
  const RandomIndexCase made = runtime::make_index_case({.lengths = {100}, .topk = 10, .candidates = 2}, 0);
  auto message_of = [&](auto change) {
    auto created = IndexRun::create(made.inputs, made.options, made.wanted, executor_);
    EXPECT_TRUE(created.ok()) << created.status().message();
    IndexTopkInputs inputs = created->inputs();
    IndexTopkOutputs outputs = created->outputs();
    IndexTopkOptions options = made.options;
    change(inputs, outputs, options);
    const Status status = index_topk(inputs, outputs, options, created->workspace(), executor_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  auto expect_part = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  using In = IndexTopkInputs&;
  using Out = IndexTopkOutputs&;
  using Options = IndexTopkOptions&;
  expect_part(message_of([](In in, Out, Options) { in.q.shape[3] = 96; }), "q is ");
  expect_part(message_of([](In in, Out, Options) { in.q.shape[2] = 12; }), "8 to 128 heads, a multiple of 8");
  expect_part(message_of([](In in, Out, Options) { in.q_scale = in.weights; }), "only e2m1 queries");
  expect_part(message_of([](In in, Out, Options) { in.weights = {}; }), "weights is missing");
  expect_part(message_of([](In in, Out, Options) { in.index_cache.shape[1] = 64 * 132 - 1; }),
              "a page of 64 keys of fp8_132 has 8448 bytes");
  expect_part(message_of([](In in, Out, Options) { in.index_cache.strides[0] += 8; }), "multiple of 16");
  expect_part(message_of([](In, Out, Options o) { o.page_size = 0; }), "page_size is 0");
  expect_part(message_of([](In, Out, Options o) { o.slot_page_size = 4; }), "slot_table is missing");
  expect_part(message_of([](In, Out, Options o) { o.candidate_block = 0; }), "candidate_block is 0");
  expect_part(message_of([](In, Out out, Options) { out.best_blocks = out.indices; }),
              "best_blocks and candidates are given");
  expect_part(message_of([](In, Out out, Options) { out.indices.shape[2] = 4096; }), "topk");
  expect_part(message_of([](In in, Out, Options) { in.cache_seqlens = in.block_table; }), "cache_seqlens");
  expect_part(
      message_of([](In in, Out out, Options) { out.counts.data = const_cast<void*>(in.weights.data); }),
      "overlap");
}

TEST_P(IndexTopk, KernelsByName) {
  const RandomIndexCase made = runtime::make_index_case({.lengths = {100}, .topk = 10}, 0);
  const IndexRun unnamed = run(made);
  executor_.kernel = "index_topk";
  EXPECT_EQ(run(made).bytes(), unnamed.bytes());
  executor_.kernel = "mla_16";
  const auto refused = IndexRun::create(made.inputs, made.options, made.wanted, executor_);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.status().message().find("'mla_16', which does not choose index keys"), std::string::npos)
      << refused.status().message();
}

TEST_P(IndexTopk, AWorkspaceThatIsTooSmallIsRefused) {
  const RandomIndexCase made = runtime::make_index_case({.lengths = {100}, .topk = 10}, 0);
  auto created = IndexRun::create(made.inputs, made.options, made.wanted, executor_);
  ASSERT_TRUE(created.ok());
  Memory small = created->workspace();
  --small.bytes;
  const Status status = index_topk(created->inputs(), created->outputs(), made.options, small, executor_);
  EXPECT_EQ(status.code(), StatusCode::kExhausted) << status.message();
}

/// Keys on the executor's device: appended, then gathered.
class IndexKeys : public IndexTopk {
 protected:
  ConstTensorView placed(const ConstTensorView& host) {
    ConstTensorView view;
    EXPECT_TRUE(runtime::place(host, view, buffers_, executor_).ok());
    return view;
  }
  static TensorView writable(const ConstTensorView& view) {
    TensorView to;
    to.data = const_cast<void*>(view.data);
    to.dtype = view.dtype;
    to.device = view.device;
    to.rank = view.rank;
    to.shape = view.shape;
    to.strides = view.strides;
    return to;
  }
  template <class T>
  void fetch(std::vector<T>& to, const ConstTensorView& view) {
    EXPECT_TRUE(runtime::synchronize(executor_).ok());
    EXPECT_TRUE(runtime::copy_to_host(to.data(), view.data, to.size() * sizeof(T), executor_).ok());
  }
  std::vector<runtime::Buffer> buffers_;
};

constexpr int kKeyPages = 3, kKeyPage = 5;

/// A key of every difficulty: normal, tiny, huge, zero, with an infinity, with NaN.
std::vector<std::uint16_t> difficult_keys() {
  std::vector<std::uint16_t> keys;
  for (float factor : {1.0F, 1e-30F, 1e30F, 0.0F, 3.0F, 7.0F, 0.001F}) {
    for (int i = 0; i < 128; ++i) {
      keys.push_back(float_to_bf16(factor * std::sin(static_cast<float>(i * 37 + keys.size()))));
    }
  }
  keys[4 * 128 + 3] = float_to_bf16(std::numeric_limits<float>::infinity());
  keys[5 * 128 + 40] = float_to_bf16(std::numeric_limits<float>::quiet_NaN());
  return keys;
}

TEST_P(IndexKeys, AppendWritesTheWritersScalesAndGatherReadsThem) {
  const std::vector<std::uint16_t> keys = difficult_keys();
  std::vector<std::int64_t> slots = {7, 0, 14, -1, 3, 9, 4};
  for (IndexFormat format : {IndexFormat::kFp8_132, IndexFormat::kMxfp4_68}) {
    SCOPED_TRACE(to_string(format));
    const std::int64_t bytes = (index_key_bytes(format) * kKeyPage + 15) / 16 * 16;
    std::vector<std::uint8_t> cache(kKeyPages * bytes, 0xAB);
    const TensorView to = writable(placed({cache.data(), Dtype::kU8, {kKeyPages, bytes}}));
    const Status status =
        append_index_keys(placed({keys.data(), Dtype::kBF16, {7, 128}}),
                          placed({slots.data(), Dtype::kI64, {7}}), to, format, kKeyPage, executor_);
    ASSERT_TRUE(status.ok()) << status.message();
    fetch(cache, to);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] < 0) continue;
      SCOPED_TRACE(i);
      const std::uint8_t* page = cache.data() + slots[i] / kKeyPage * bytes;
      const std::uint8_t* data = page + index_keys::data_offset(format, slots[i] % kKeyPage);
      const std::uint8_t* scales = page + index_keys::scale_offset(format, kKeyPage, slots[i] % kKeyPage);
      const int group = format == IndexFormat::kFp8_132 ? 128 : 32;
      for (int first = 0; first < 128; first += group) {
        double amax = 0;
        bool finite = true;
        for (int j = first; j < first + group; ++j) {
          const float x = bf16_to_float(keys[i * 128 + j]);
          finite = finite && std::isfinite(x);
          if (std::isfinite(x)) amax = std::max(amax, std::fabs(double{x}));
        }
        if (format == IndexFormat::kFp8_132) {
          float scale;
          std::memcpy(&scale, scales, sizeof(scale));
          EXPECT_EQ(scale, std::exp2(std::ceil(std::log2(std::max(amax, 1e-4) / 448))));
          for (int j = 0; j < 128; ++j) {
            const float x = bf16_to_float(keys[i * 128 + j]);
            EXPECT_EQ(data[j], std::isfinite(x) ? e4m3::encode(x / scale) : e4m3::kNan) << j;
          }
        } else {
          const double scale = std::exp2(std::ceil(std::log2(std::max(amax, 6 * std::exp2(-126)) / 6)));
          EXPECT_EQ(scales[first / 32], finite ? 127 + std::lround(std::log2(scale)) : 255);
          for (int j = first; j < first + group && finite; ++j) {
            const double x = bf16_to_float(keys[i * 128 + j]) / scale;
            const double got = e2m1::decode(data[j / 2] >> (j % 2 * 4) & 0xFU);
            // To the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
            const double step = std::fabs(x) < 2 ? 0.5 : std::fabs(x) < 4 ? 1 : 2;
            EXPECT_LE(std::fabs(got - x), step / 2) << j;
          }
        }
      }
    }
    // What no slot names stays.
    EXPECT_EQ(cache[index_keys::data_offset(format, 1)], 0xAB);

    std::vector<std::int32_t> table = {0, 1, 2, 2, 7, 0}, sums = {0, 15, 26};
    std::vector<float> rows(26 * 128, 99);
    const TensorView out = writable(placed({rows.data(), Dtype::kF32, {26, 128}}));
    const Status gathered =
        gather_index_keys(to, placed({table.data(), Dtype::kI32, {2, 3}}),
                          placed({sums.data(), Dtype::kI32, {3}}), out, format, kKeyPage, executor_);
    ASSERT_TRUE(gathered.ok()) << gathered.message();
    fetch(rows, out);
    for (int j = 0; j < 128; ++j) {
      // Slot 7 has the first key; slot 14 the third: the last of page 2, which the second request has first.
      const float scale = format == IndexFormat::kFp8_132 ? 1.0F / 16 : 1.0F / 4;
      EXPECT_NEAR(rows[7 * 128 + j], bf16_to_float(keys[j]), scale);
      EXPECT_EQ(rows[14 * 128 + j], rows[(15 + 4) * 128 + j]);
      EXPECT_EQ(rows[(15 + 5) * 128 + j], 0);  // page 7 does not exist
      EXPECT_EQ(rows[(15 + 10) * 128 + j], rows[j]);
    }
  }
}

TEST_P(IndexKeys, MergeFindsTheBestOfAllRanks) {
  constexpr int kRanks = 3, kTopk = 40;
  std::vector<float> scores(kRanks * 2 * kTopk), pool[2];
  std::vector<std::int32_t> counts = {40, 40, 40, 7, 40, 0}, indices(2 * kTopk);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<float>((i * 7919) % 61) - 20;  // many are equal
  }
  scores[3] = std::numeric_limits<float>::quiet_NaN();
  for (int i = 0; i < 2 * kTopk; ++i) indices[i] = 1000 + i;
  struct Entry {
    float score;
    int rank, place;
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<std::int32_t> got(2 * kTopk, 5), got_counts(2, 5);
    const TensorView out = writable(placed({got.data(), Dtype::kI32, {2, 1, kTopk}}));
    const TensorView out_counts = writable(placed({got_counts.data(), Dtype::kI32, {2, 1}}));
    const Status status =
        merge_topk(placed({scores.data(), Dtype::kF32, {kRanks, 2, 1, kTopk}}),
                   placed({counts.data(), Dtype::kI32, {kRanks, 2, 1}}),
                   placed({indices.data(), Dtype::kI32, {2, 1, kTopk}}), rank, out, out_counts, executor_);
    ASSERT_TRUE(status.ok()) << status.message();
    fetch(got, out);
    fetch(got_counts, out_counts);
    for (int row = 0; row < 2; ++row) {
      std::vector<Entry> entries;
      for (int r = 0; r < kRanks; ++r) {
        for (int i = 0; i < counts[r * 2 + row]; ++i) {
          const float score = scores[(r * 2 + row) * kTopk + i];
          entries.push_back({std::isnan(score) ? -std::numeric_limits<float>::infinity() : score, r, i});
        }
      }
      std::stable_sort(entries.begin(), entries.end(),
                       [](const Entry& a, const Entry& b) { return a.score > b.score; });
      if (entries.size() > kTopk) entries.resize(kTopk);
      std::vector<int> mine;
      for (const Entry& entry : entries) {
        if (entry.rank == rank) mine.push_back(indices[row * kTopk + entry.place]);
      }
      std::sort(mine.begin(), mine.end());
      EXPECT_EQ(got_counts[row], static_cast<int>(mine.size()));
      mine.resize(kTopk, -1);
      EXPECT_EQ(std::vector<int>(got.begin() + row * kTopk, got.begin() + (row + 1) * kTopk), mine);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, IndexTopk, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         [](const auto& info) { return std::string(to_string(info.param)); });
INSTANTIATE_TEST_SUITE_P(Backends, IndexKeys, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(CompareIndex, NoticesEachKindOfError) {
  const RandomIndexCase made = runtime::make_index_case({.lengths = {500}, .topk = 64, .best_blocks = 16}, 1);
  auto created = IndexRun::create(made.inputs, made.options, made.wanted, Executor{});
  ASSERT_TRUE(created.ok());
  ASSERT_TRUE(created->run().ok() && created->fetch().ok());
  const IndexTopkOutputs& results = created->results();
  ASSERT_TRUE(runtime::compare_index(made.inputs, made.options, results).ok());
  auto* indices = static_cast<std::int32_t*>(results.indices.data);
  auto* scores = static_cast<float*>(results.scores.data);
  auto* all = static_cast<float*>(results.all_scores.data);
  auto* best = static_cast<std::int32_t*>(results.best_blocks.data);
  auto* counts = static_cast<std::int32_t*>(results.counts.data);
  auto wrong = [&](auto* value, auto other) {
    const auto before = *value;
    *value = other;
    const bool noticed = !runtime::compare_index(made.inputs, made.options, results).ok();
    *value = before;
    return noticed;
  };
  EXPECT_TRUE(wrong(indices, indices[0] + 1));
  EXPECT_TRUE(wrong(indices + 63, -1));
  EXPECT_TRUE(wrong(scores + 5, scores[5] * 1.01F));
  EXPECT_TRUE(wrong(all + 7, all[7] * 1.01F));
  EXPECT_TRUE(wrong(counts, 63));
  EXPECT_TRUE(wrong(best + 15, -1));  // the newest block
  EXPECT_TRUE(wrong(best, best[0] == 0 ? 1 : 0));
}

}  // namespace
}  // namespace flashlatent
