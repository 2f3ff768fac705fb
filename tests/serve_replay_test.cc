// Whole replays, verified against the oracle, and a corrupted cache that verification must catch.
#include "serve/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "serve/engine.h"
#include "serve_traces.h"

namespace flashlatent::serve {
namespace {

using Trace = std::vector<io::TraceRequest>;

ReplayOptions small_options() {
  ReplayOptions options;
  options.heads = 4;
  options.batch = 6;
  options.pool_tokens = 2000;
  options.page_size = 16;
  options.verify = true;
  options.verify_every = 1;
  return options;
}

TEST(Replay, IsRightUnderPreemptionAndEviction) {
  Trace trace;
  for (int i = 0; i < 6; ++i) trace.push_back(request(515 + 7 * i, 110, {i % 2, 10 + i}));
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    ReplayOptions options = small_options();
    options.dtype = dtype;
    options.layers = dtype == Dtype::kBF16 ? 2 : 1;
    options.pool_tokens = 1200;  // two run, until they have grown
    options.verify_every = 10;
    options.immediate = true;
    std::int64_t last = 0, calls = 0;
    options.progress = [&](std::int64_t generated) {
      EXPECT_GT(generated, last);
      last = generated;
      ++calls;
    };
    const auto report = replay(trace, options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->mismatch, "");
    EXPECT_EQ(report->requests, 6);
    EXPECT_EQ(report->tokens, output_tokens(trace));
    EXPECT_EQ(last, report->tokens);
    EXPECT_EQ(calls, report->steps);
    EXPECT_GE(report->verified_rows, options.verify_heads * report->steps / 10);
    EXPECT_GT(report->preemptions, 0);
    EXPECT_GT(report->evictions, 0);
    EXPECT_GT(report->recomputed_tokens, 0);
    EXPECT_GT(report->prefix_hits, 0);
    EXPECT_LE(report->step_ms_p50, report->step_ms_p99);
    EXPECT_LE(report->step_ms_p99, report->step_ms_max);
    EXPECT_LE(report->pool_used_peak, 1);
    EXPECT_LE(report->batch_mean, options.batch);
  }
}

TEST(Replay, ServesASyntheticTraceInItsOwnTime) {
  const Trace trace = io::synthetic_trace(3, 1);
  ReplayOptions options = small_options();
  options.pool_tokens = 65536;
  options.page_size = 64;
  options.heads = 1;
  options.verify_every = 100;
  const auto report = replay(trace, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->mismatch, "");
  EXPECT_EQ(report->tokens, output_tokens(trace));
  EXPECT_EQ(report->preemptions, 0);
  EXPECT_GT(report->verified_rows, 0);
}

/// The first requests of a real trace, cut to a few generated tokens each, in a pool that the longest one
/// fills.
void replay_real_trace(const char* name, std::size_t requests) {
  const auto path = std::filesystem::path(FLASHLATENT_SHARED_DIR) / "data" / name;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  auto trace = io::load_trace(path.string(), requests);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  int longest = 0;
  for (io::TraceRequest& r : *trace) {
    r.output_length = std::min(r.output_length, 4);
    longest = std::max(longest, r.input_length + r.output_length);
  }
  ReplayOptions options = small_options();
  options.heads = 2;
  options.page_size = 64;
  options.pool_tokens = longest + 64;
  options.verify_every = 7;
  const auto report = replay(*trace, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->mismatch, "");
  EXPECT_EQ(report->requests, static_cast<std::int64_t>(requests));
  EXPECT_EQ(report->tokens, output_tokens(*trace));
  EXPECT_GT(report->verified_rows, 0);
}

TEST(Replay, ServesAMooncakeTrace) {
  replay_real_trace("mooncake_conversation_4k.jsonl", 6);
}
TEST(Replay, ServesAnAzureTrace) {
  replay_real_trace("azure_code_2023.csv", 20);
}

/// How many pages have hash ids that, up to there, an earlier request has had, if nothing is evicted.
std::int64_t implied_hits(const Trace& trace, int page_size) {
  std::set<std::pair<std::vector<std::int64_t>, int>> seen;  // a page: its prefix of ids, its place
  std::int64_t hits = 0;
  for (const io::TraceRequest& r : trace) {
    const int named = std::min(r.input_length, io::kTraceBlockTokens * static_cast<int>(r.hash_ids.size()));
    bool prefix = true;
    for (int page = 0; page < named / page_size; ++page) {
      const auto blocks = r.hash_ids.begin() + page * page_size / io::kTraceBlockTokens + 1;
      const bool is_new = seen.insert({{r.hash_ids.begin(), blocks}, page}).second;
      prefix &= !is_new;
      hits += prefix;
    }
  }
  return hits;
}

TEST(Replay, ServesAGqaModelWithTheHitsThatHashIdsImply) {
  const auto path = std::filesystem::path(FLASHLATENT_SHARED_DIR) / "data/mooncake_conversation_4k.jsonl";
  Trace trace = {request(1500, 3, {1, 2, 3}), request(1300, 2, {1, 2, 4}), request(700, 2, {1, 5}),
                 request(1024, 1, {2, 1})};
  if (std::filesystem::exists(path)) {
    auto loaded = io::load_trace(path.string(), 30);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    trace = std::move(*loaded);
  }
  ReplayOptions options = small_options();
  options.heads = 4;
  options.kv_heads = 2;
  options.kv_dim = 16;
  options.page_size = 64;
  options.verify_every = 20;
  options.pool_tokens = 0;
  for (io::TraceRequest& r : trace) {
    r.output_length = std::min(r.output_length, 3);
    options.pool_tokens += r.input_length + 128;
  }
  const auto report = replay(trace, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->mismatch, "");
  EXPECT_GT(report->verified_rows, 0);
  EXPECT_EQ(report->evictions, 0);
  EXPECT_GT(report->prefix_hits, 0);
  EXPECT_EQ(report->prefix_hits, implied_hits(trace, options.page_size));
}

TEST(Replay, RefusesOptionsByName) {
  const Trace trace = {request(10, 2)};
  auto message_of = [&](auto change) {
    ReplayOptions options = small_options();
    change(options);
    const auto report = replay(trace, options);
    EXPECT_FALSE(report.ok());
    return report.status().message();
  };
  auto expect_names = [](const std::string& message, const char* name) {
    EXPECT_NE(message.find(name), std::string::npos) << message;
  };
  expect_names(message_of([](ReplayOptions& o) { o.page_size = 0; }), "page_size is 0");
  expect_names(message_of([](ReplayOptions& o) { o.pool_tokens = 15; }), "pool_tokens is 15");
  expect_names(message_of([](ReplayOptions& o) { o.pool_tokens = std::int64_t{1} << 60; }), "pool_tokens");
  expect_names(message_of([](ReplayOptions& o) { o.layers = 0; }), "layers is 0");
  expect_names(message_of([](ReplayOptions& o) { o.heads = 0; }), "heads");
  expect_names(message_of([](ReplayOptions& o) { o.batch = 0; }), "batch is 0");
  expect_names(message_of([](ReplayOptions& o) { o.verify_every = 0; }), "verify_every is 0");
  expect_names(message_of([](ReplayOptions& o) { o.verify_heads = 0; }), "verify_heads is 0");
  expect_names(message_of([](ReplayOptions& o) { o.layers = 1 << 30; }), "fewer layers");
}

/// One step of two requests, in whose caches something may be changed before it runs; of MLA, and of GQA with
/// that many elements a key.
class EngineTest : public testing::TestWithParam<int> {
 protected:
  static constexpr int kPages = 40, kPageSize = 16, kLayers = 2;

  void SetUp() override {
    auto scheduler = Scheduler::create(trace_, {4, kPages, kPageSize, true});
    ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
    scheduler_.emplace(std::move(*scheduler));
    Engine::Options options;
    options.layers = kLayers;
    options.heads = 8;
    options.kv_dim = GetParam();
    options.kv_heads = GetParam() > 0 ? 2 : 1;
    options.batch = 4;
    options.pages = kPages;
    options.page_size = kPageSize;
    options.max_pages = 20;
    auto engine = Engine::create(trace_, options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_.emplace(std::move(*engine));
    auto step = scheduler_->begin_step(0);
    ASSERT_TRUE(step.ok()) << step.status().message();
    step_ = std::move(*step);
    ASSERT_EQ(step_.requests.size(), 2U);
  }

  void fill(const Scheduler::Fill& fill) { ASSERT_TRUE(engine_->fill(fill, scheduler_->pool()).ok()); }

  runtime::Comparison run_and_verify(int row, int layer) {
    const auto seconds = engine_->step(step_, scheduler_->pool(), layer);
    EXPECT_TRUE(seconds.ok()) << seconds.status().message();
    const auto comparison = engine_->verify(step_, row, layer, 8);
    EXPECT_TRUE(comparison.ok()) << comparison.status().message();
    return *comparison;
  }

  const Trace trace_ = {request(150, 3), request(200, 3)};
  std::optional<Scheduler> scheduler_;
  std::optional<Engine> engine_;
  Scheduler::Step step_;
};

INSTANTIATE_TEST_SUITE_P(Models, EngineTest, testing::Values(0, 40));

TEST_P(EngineTest, IsRight) {
  for (const auto& f : step_.fills) fill(f);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int row = 0; row < 2; ++row) {
      const runtime::Comparison comparison = run_and_verify(row, layer);
      EXPECT_TRUE(comparison.ok()) << runtime::to_string(comparison);
      EXPECT_EQ(comparison.rows, 8);
    }
  }
  EXPECT_EQ(engine_->context(), 151 + 201);
}

TEST_P(EngineTest, VerifyCatchesAnotherRequestsToken) {
  for (const auto& f : step_.fills) fill(f);
  fill({.request = 0, .sequence = step_.sequences[1], .begin = 77, .end = 78});
  EXPECT_TRUE(run_and_verify(0, 0).ok());
  const runtime::Comparison wrong = run_and_verify(1, 1);
  EXPECT_GT(wrong.wrong_rows, 0);
  EXPECT_GT(wrong.worst.error, wrong.worst.tolerance);
  EXPECT_NE(wrong.worst.got, wrong.worst.expected);
}

TEST_P(EngineTest, VerifyCatchesATokenThatNobodyWrote) {
  fill(step_.fills[0]);
  Scheduler::Fill short_fill = step_.fills[1];
  --short_fill.end;
  fill(short_fill);
  EXPECT_TRUE(run_and_verify(0, 0).ok());
  const runtime::Comparison wrong = run_and_verify(1, 0);
  EXPECT_EQ(wrong.wrong_rows, wrong.rows);
  EXPECT_TRUE(std::isnan(wrong.worst.got));  // unwritten memory is NaN
}

}  // namespace
}  // namespace flashlatent::serve
