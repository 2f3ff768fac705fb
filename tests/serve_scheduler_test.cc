// Continuous batching against a model of the cache that knows which token lies where.
#include "serve/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>

#include "serve_traces.h"

namespace flashlatent::serve {
namespace {

using Trace = std::vector<io::TraceRequest>;

/// Serves a trace and checks each step: the batch is within its bound and has no request twice, every running
/// request has one token more than in its last step, and the bytes of each of its tokens are where the page
/// table says.
class Server {
 public:
  Server(const Trace& trace, const Scheduler::Options& options)
      : trace_(trace),
        options_(options),
        cache_(static_cast<std::size_t>(options.pages) * options.page_size) {
    auto created = Scheduler::create(trace_, options_);
    EXPECT_TRUE(created.ok()) << created.status().message();
    if (created.ok()) scheduler_.emplace(std::move(*created));
  }

  Scheduler& scheduler() { return *scheduler_; }
  const Scheduler::Step& last_step() const { return step_; }

  void step(double now_ms) {
    auto step = scheduler_->begin_step(now_ms);
    ASSERT_TRUE(step.ok()) << step.status().message();
    step_ = std::move(*step);
    ASSERT_LE(step_.requests.size(), static_cast<std::size_t>(options_.batch));
    ASSERT_EQ(step_.requests.size(), step_.sequences.size());
    ASSERT_EQ(std::set<int>(step_.requests.begin(), step_.requests.end()).size(), step_.requests.size());
    for (const Scheduler::Fill& fill : step_.fills) {
      for (int token = fill.begin; token < fill.end; ++token) {
        cache_[slot(fill.sequence, token)] = name(fill.request, token);
      }
    }
    for (std::size_t i = 0; i < step_.requests.size(); ++i) {
      const int request = step_.requests[i];
      ++served_[request];
      const int length = *scheduler_->pool().length(step_.sequences[i]);
      ASSERT_EQ(length, trace_[request].input_length + served_[request]) << "request " << request;
      for (int token = 0; token < length; ++token) {
        ASSERT_EQ(cache_[slot(step_.sequences[i], token)], name(request, token))
            << "request " << request << " token " << token;
      }
    }
    const Status finished = scheduler_->finish_step();
    ASSERT_TRUE(finished.ok()) << finished.message();
    const Status sound = scheduler_->pool().check_invariants();
    ASSERT_TRUE(sound.ok()) << sound.message();
  }

  /// To the end, `step_ms` a step.
  void run(double step_ms) {
    double now = 0;
    for (std::int64_t steps = 0; !scheduler_->done(); ++steps, now += step_ms) {
      ASSERT_LT(steps, 1'000'000) << "no end";
      if (const auto arrival = scheduler_->idle_until()) now = std::max(now, static_cast<double>(*arrival));
      ASSERT_NO_FATAL_FAILURE(step(now));
    }
    for (std::size_t i = 0; i < trace_.size(); ++i) {
      EXPECT_EQ(served_[static_cast<int>(i)], trace_[i].output_length) << "request " << i;
    }
    EXPECT_EQ(scheduler_->counts().generated, output_tokens(trace_));
    EXPECT_EQ(scheduler_->pool().stats().used, 0);
    EXPECT_EQ(scheduler_->pool().stats().sequences, 0);
  }

 private:
  using Name = std::tuple<RowKind, std::int64_t, std::int64_t>;

  Name name(int request, int token) const {
    const RowName name = token_name(trace_[request], request, token);
    return {name.kind, name.stream, name.position};
  }

  std::int64_t slot(PagePool::Sequence sequence, int token) const {
    const auto pages = *scheduler_->pool().pages(sequence);
    return std::int64_t{pages[token / options_.page_size]} * options_.page_size + token % options_.page_size;
  }

  const Trace& trace_;
  const Scheduler::Options options_;
  std::optional<Scheduler> scheduler_;
  Scheduler::Step step_;
  std::vector<Name> cache_;  // by page and offset
  std::map<int, int> served_;
};

TEST(Scheduler, LosesNoRequestUnderPreemptionAndEviction) {
  std::int64_t preemptions = 0, evictions = 0, hits = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Trace trace = random_trace(25, 1300, 60, seed);
    for (int page_size : {16, 48, 64, 512}) {
      for (int batch : {1, 4, 32}) {
        SCOPED_TRACE("seed " + std::to_string(seed) + " page " + std::to_string(page_size) + " batch " +
                     std::to_string(batch));
        // The longest request just fits.
        Server server(trace, {batch, (1360 + page_size - 1) / page_size, page_size, seed % 2 == 0});
        ASSERT_NO_FATAL_FAILURE(server.run(1));
        preemptions += server.scheduler().counts().preemptions;
        evictions += server.scheduler().pool().stats().evictions;
        hits += server.scheduler().counts().prefix_hits;
      }
    }
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(evictions, 0);
  EXPECT_GT(hits, 0);
}

TEST(Scheduler, PreemptsTheYoungestAndComputesItAgain) {
  const Trace trace = {request(60, 40), request(60, 40)};
  Server server(trace, {4, 10, 16, true});  // 160 tokens; both need 200 at their ends
  server.run(1);
  EXPECT_EQ(server.scheduler().counts().preemptions, 1);
  // It had 60 + 20 tokens in 5 pages; to fill them again takes all of them.
  EXPECT_EQ(server.scheduler().counts().recomputed, 80);
}

TEST(Scheduler, SharesPrefixesByHashIds) {
  const Trace trace = {request(1024, 2, {1, 2}), request(1024, 2, {1, 3}), request(1024, 2, {2, 1}),
                       request(1024, 2)};
  Server server(trace, {4, 100, 64, true});
  server.step(0);
  ASSERT_EQ(server.last_step().fills.size(), 4U);
  EXPECT_EQ(server.last_step().fills[0].begin, 0);
  EXPECT_EQ(server.last_step().fills[1].begin, 512);  // within one step
  EXPECT_EQ(server.last_step().fills[2].begin, 0);    // the same blocks, but not as a prefix
  EXPECT_EQ(server.last_step().fills[3].begin, 0);    // no hash ids
  EXPECT_EQ(server.scheduler().counts().prefix_pages, 3 * 16);
  EXPECT_EQ(server.scheduler().counts().prefix_hits, 8);
  server.run(1);
  EXPECT_EQ(server.scheduler().counts().prefix_hits, 8);
}

TEST(Scheduler, FindsThePrefixOfARequestThatIsGone) {
  const Trace trace = {request(700, 1, {5, 6}), request(700, 1, {5, 6}, 1000)};
  Server server(trace, {4, 100, 64, false});
  server.run(1);
  EXPECT_EQ(server.scheduler().counts().prefix_hits, 10);  // whole pages of 700 tokens
}

TEST(Scheduler, KeepsTheBatchBoundAndTheOrderOfArrival) {
  Trace trace;
  for (int i = 0; i < 10; ++i) trace.push_back(request(10, 5));
  Server server(trace, {3, 100, 16, true});
  server.step(0);
  EXPECT_EQ(server.last_step().requests, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(server.scheduler().waiting(), 7);
  server.run(1);
}

TEST(Scheduler, WaitsForArrivals) {
  const Trace trace = {request(10, 1, {}, 50), request(10, 1, {}, 80)};
  Server server(trace, {4, 10, 16, false});
  EXPECT_EQ(server.scheduler().idle_until(), 50);
  server.step(49);
  EXPECT_TRUE(server.last_step().requests.empty());
  server.step(50);
  EXPECT_EQ(server.last_step().requests, std::vector<int>{0});
  EXPECT_EQ(server.scheduler().idle_until(), 80);
  server.run(1);
  EXPECT_EQ(server.scheduler().idle_until(), std::nullopt);
}

TEST(Scheduler, CompletesRequestsThatAskForNothing) {
  const Trace trace = {request(10, 0), request(0, 3), request(0, 0)};
  Server server(trace, {4, 10, 16, true});
  server.run(1);
  EXPECT_EQ(server.scheduler().counts().completed, 3);
  const Trace empty;
  EXPECT_TRUE(Scheduler::create(empty, {4, 10, 16, true})->done());
}

TEST(Scheduler, RefusesARequestThatCanNeverFit) {
  const Trace trace = {request(100, 60), request(101, 60)};
  const auto created = Scheduler::create(trace, {4, 10, 16, true});
  ASSERT_FALSE(created.ok());
  EXPECT_EQ(created.status().code(), StatusCode::kInvalidArgument);
  for (const char* piece : {"request 1 ", "101 + 60", "pool of 160", "at least 176"}) {
    EXPECT_NE(created.status().message().find(piece), std::string::npos) << created.status().message();
  }
  // The advice holds: 11 pages of 16, for the largest of several that do not fit.
  EXPECT_TRUE(Scheduler::create(trace, {4, 176 / 16, 16, true}).ok());
  const Trace several = {request(200, 1), request(300, 1), request(250, 1)};
  const auto refused = Scheduler::create(several, {4, 10, 16, true});
  EXPECT_NE(refused.status().message().find("at least 304"), std::string::npos) << refused.status().message();
  // Nobody serves a request that asks for nothing.
  const Trace nothing = {request(1000, 0), request(100, 60)};
  EXPECT_TRUE(Scheduler::create(nothing, {4, 10, 16, true}).ok());
  EXPECT_FALSE(Scheduler::create(trace, {0, 100, 16, true}).ok());
  EXPECT_FALSE(Scheduler::create(trace, {4, 0, 16, true}).ok());
}

}  // namespace
}  // namespace flashlatent::serve
