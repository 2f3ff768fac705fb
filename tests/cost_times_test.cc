// What calls take, equal and varied lengths, and what is picked by both. No device is asked.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cost/device.h"
#include "cost/times.h"
#include "dispatch/select.h"
#include "plan/schedule.h"

namespace flashlatent {
namespace {

using cost::Items;
using cost::ItemTimes;
using schedule::Geometry;
using schedule::Partition;

constexpr ItemTimes kTimes = {.whole_call = 3000,
                              .cut_call = 1000,
                              .segment = 5000,
                              .rounding = 2000,
                              .merge = 4000,
                              .lone_share = 9000,
                              .block = 2000,
                              .block_alone = 1000,
                              .block_near = 2000};

Geometry line(int requests, int blocks) {
  return {.requests = requests, .parts = 132, .max_tokens = 64 * blocks, .cost = {.per_block = 2000}};
}

TEST(CostTimes, OfWholeItemsHaveALastRoundWithFewCtas) {
  // A round of 132 and one of 68: half of the CTAs, and a little more.
  const double late = std::max(2000.0 * 68 / 132, 1000 + 1000.0 * (136 - 132) / 132);
  const schedule::CallTimes two = cost::of_line(line(200, 10), kTimes, Items::kWhole, 132);
  EXPECT_EQ(two.equal, std::llround(3000 + 2 * 5000 + 10 * 2000 + 10 * late));
  EXPECT_EQ(two.varied, std::llround(3000 + 2 * 5000 + 6 * 2000 + 6 * late));
  EXPECT_EQ(cost::of_line(line(264, 10), kTimes, Items::kWhole, 132).equal, 3000 + 2 * (5000 + 20000));
  EXPECT_EQ(cost::of_line(line(66, 10), kTimes, Items::kWhole, 132).equal, 3000 + 5000 + 10 * 1000);
}

// The last item of a part may be the longest.
TEST(CostTimes, OfItemsInTurnAreNotBalanced) {
  Geometry turns = line(264, 10);
  turns.partition = Partition::kTurns;
  const schedule::CallTimes times = cost::of_line(turns, kTimes, Items::kWhole, 132);
  EXPECT_EQ(times.equal, 3000 + 2 * (5000 + 20000));
  EXPECT_EQ(times.varied, 3000 + 2 * 5000 + 6 * 2000 + 10 * 2000);
}

TEST(CostTimes, OfCutItemsCountSegmentsOnce) {
  // Two parts or more a request: one segment each.
  EXPECT_EQ(cost::of_line(line(4, 66), kTimes, Items::kCut, 132).equal, 9000 + 2 * 2000);
  // Shares of 3 blocks leave 40 CTAs without work, so that a block takes less.
  const double among = 1000 + 1000.0 * (2 * 92 - 132) / 132;
  const schedule::CallTimes three = cost::of_line(line(4, 67), kTimes, Items::kCut, 132);
  EXPECT_EQ(three.equal, std::llround(9000 + 3 * among));
  EXPECT_EQ(three.varied, std::llround(9000 + 2 * among));
  EXPECT_EQ(cost::of_line(line(99, 8), kTimes, Items::kCut, 132).equal,
            1000 + 5000 + 2000 + 4000 + 99 * (5000 + 8 * 2000) / 132);
  EXPECT_EQ(cost::of_line(line(132, 8), kTimes, Items::kFaster, 132).equal, 3000 + 5000 + 8 * 2000);
  // A lone request's length is the longest; so is that of requests with a CTA each.
  const schedule::CallTimes lone = cost::of_line(line(1, 660), kTimes, Items::kCut, 132);
  EXPECT_EQ(lone.equal, lone.varied);
  Geometry whole = line(4, 10);
  whole.partition = Partition::kWhole;
  const schedule::CallTimes apart = cost::of_line(whole, kTimes, Items::kWhole, 132);
  EXPECT_EQ(apart.equal, apart.varied);
}

TEST(CostTimes, OfSharesFollowLengthsOnlyIfTheseDecide) {
  Geometry shares = line(4, 132);
  shares.cost = {.per_block = 1000, .per_split = 500, .per_merge = 100};
  shares.partition = Partition::kSharesByLength;
  EXPECT_EQ(cost::of_shares(shares).equal, 500 + 4 * 1000 + 100);
  EXPECT_EQ(cost::of_shares(shares).varied, 500 + 2400 + 100);
  shares.partition = Partition::kEvenShares;
  EXPECT_EQ(cost::of_shares(shares).varied, 500 + 4 * 1000 + 100);
}

TEST(CostTimes, OfTeamsAreThoseOfTheLongestRequestAloneAtLast) {
  Geometry teams = line(12, 32);
  teams.parts = 12;
  teams.team = 8;
  teams.partition = Partition::kWhole;
  teams.cost = {.per_block = 250, .per_split = 50, .per_call = 3950};
  const cost::TeamCosts costs = {.block_alone = 1600};  // 200 of a team
  EXPECT_EQ(cost::of_team_parts(teams, costs).equal, 4000 + 32 * 250);
  EXPECT_EQ(cost::of_team_parts(teams, costs).varied, std::llround(4000 + 32 * (0.6 * 250 + 0.4 * 200)));
}

TEST(CostTimes, APickGoesByBothTimes) {
  EXPECT_EQ(cost::expected({.equal = 400, .varied = 100}), 200);
  EXPECT_GT(cost::expected({.equal = 300, .varied = 300}), cost::expected({.equal = 310, .varied = 200}));
}

std::vector<Candidate> candidates_of(int batch, int heads, int tokens, const char* gpu,
                                     int query_tokens = 1) {
  DecodeProblem problem;
  problem.query = {.batch = batch, .tokens = query_tokens, .heads = heads};
  problem.cache.max_pages = tokens / 64;
  problem.cache.page_size = 64;
  problem.options.softmax_scale = 1;
  Executor executor;
  executor.backend = Backend::kCuda;
  return *candidates(problem, executor, cost::workers_of(*cost::find_gpu(gpu)));
}

const Candidate& named(const std::vector<Candidate>& list, const std::string& name) {
  for (const Candidate& candidate : list) {
    if (candidate.kernel->name == name) return candidate;
  }
  throw std::runtime_error(name + " is no kernel");
}

// On an H100 a segment of a share takes no longer than on an H200, though a block does.
TEST(CostTimes, ASegmentTakesClocks) {
  const Candidate h200 = named(candidates_of(5, 48, 9728, "H200"), "mla_64_pingpong");
  const Candidate h100 = named(candidates_of(5, 48, 9728, "H100"), "mla_64_pingpong");
  ASSERT_EQ(h200.geometry.partition, Partition::kSharesByLength);
  const double blocks = 6;  // 152 blocks in 26 shares
  EXPECT_NEAR(h100.times.equal - h200.times.equal, blocks * (h100.geometry.cost.per_block - 2200), 10);
}

// H100, 5 requests of 7,315 tokens on average, the longest of 9,700: 27.0 us by shares, 30.8 by teams.
TEST(CostTimes, TeamsLoseWhereLengthsMayVary) {
  const std::vector<Candidate> list = candidates_of(5, 48, 9728, "H100");
  EXPECT_LT(named(list, "mla_16_team8").times.equal, named(list, "mla_64_pingpong").times.equal);
  EXPECT_STREQ(cheapest(list)->kernel->name, "mla_64_pingpong");
  // One request has one length, but a table that reaches far does not say which.
  for (const Candidate& candidate : candidates_of(1, 48, 9728, "H100")) {
    EXPECT_EQ(candidate.times.equal, candidate.times.varied) << candidate.kernel->name;
  }
  const int reach = 4 * cost::kFarTokens;
  const Candidate far = named(candidates_of(1, 48, reach, "H100"), "mla_64_pingpong");
  EXPECT_EQ(far.times.varied,
            named(candidates_of(1, 48, cost::kFarTokens, "H100"), "mla_64_pingpong").times.equal);
}

// By teams two query tokens of 48 heads take longer than one of 96.
TEST(CostTimes, SeveralQueryTokensTakeLonger) {
  const Candidate two = named(candidates_of(8, 48, 640, "H200", 2), "mla_64_pingpong");
  const Candidate one = named(candidates_of(8, 96, 640, "H200"), "mla_64_pingpong");
  EXPECT_EQ(two.geometry.team, one.geometry.team);
  EXPECT_GT(two.geometry.team, 1);
  EXPECT_GT(two.times.equal, one.times.equal);
}

}  // namespace
}  // namespace flashlatent
