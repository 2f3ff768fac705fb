// Sparse decode by two lists: whole items in turn, or a line. No device is asked.
#include <gtest/gtest.h>

#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/mla_64_pingpong/takes.h"
#include "pingpong_plan.h"
#include "plan/plan_memory.h"

namespace flashlatent {
namespace {

constexpr int kWorkers = 132;
using schedule::Partition;

/// DeepSeek V4's.
DecodeProblem problem_of(int batch, int tokens, int heads, int extra) {
  DecodeProblem problem;
  problem.query = {.batch = batch, .tokens = tokens, .heads = heads};
  problem.cache.format = KvFormat::kFp8_584;
  problem.cache.qk_dim = problem.cache.v_dim = 512;
  problem.cache.page_size = 256;
  problem.options.softmax_scale = 1;
  problem.sparse = {.enabled = true, .topk = 128};
  if (extra > 0) problem.cache.extra = {.enabled = true, .indexed = true, .page_size = 64, .topk = extra};
  return problem;
}

schedule::Geometry planned(const DecodeProblem& problem) {
  return pingpong_plan(problem, kWorkers);
}

TEST(Turns, WholeItemsWhereRoundsAreNearlyFull) {
  // 256 items on 132 parts, or on 66 pairs: two rounds of 10 blocks and four of 18.
  for (auto [heads, extra, parts] : {std::array{64, 512, 132}, {128, 1024, 66}}) {
    const DecodeProblem problem = problem_of(128, 2, heads, extra);
    const schedule::Geometry g = planned(problem);
    EXPECT_EQ(g.partition, Partition::kTurns) << heads;
    EXPECT_EQ(g.parts, parts);
    EXPECT_EQ(schedule::max_merges(g), 0);
    EXPECT_TRUE(mla_64_pingpong::has_items_in_turn(problem, g));
  }
  // No more items than parts.
  const schedule::Geometry g = planned(problem_of(64, 2, 64, 512));
  EXPECT_EQ(g.partition, Partition::kTurns);
  EXPECT_EQ(g.parts, 128);
}

TEST(Turns, AsPlannedOtherwise) {
  // A second round for 28 of 160 items, of 66 blocks.
  EXPECT_EQ(planned(problem_of(160, 1, 64, 4096)).partition, Partition::kLine);
  // Shares of few requests.
  EXPECT_EQ(planned(problem_of(2, 2, 64, 512)).partition, Partition::kEvenShares);
  DecodeProblem invariant = problem_of(128, 2, 64, 512);
  invariant.options.batch_invariant = true;
  EXPECT_EQ(planned(invariant).partition, Partition::kFixedSplits);
  // Which query tokens a ragged request has, and how long page tables are, is not known.
  DecodeProblem dense = problem_of(128, 2, 64, 0);
  dense.sparse = {};
  dense.cache.max_pages = 2;
  dense.options.window = 128;
  EXPECT_NE(planned(dense).partition, Partition::kTurns);
  EXPECT_TRUE(mla_64_pingpong::has_listed_shares(dense, planned(dense)));
  dense.query.ragged = true;
  EXPECT_FALSE(mla_64_pingpong::has_listed_shares(dense, planned(dense)));
  // One list: a kernel of its own.
  DecodeProblem one_list = problem_of(128, 2, 64, 0);
  one_list.cache.format = KvFormat::kFp8_656;
  one_list.cache.qk_dim = 576;
  EXPECT_EQ(planned(one_list).partition, Partition::kLine);
}

TEST(Turns, ShortDenseItems) {
  DecodeProblem problem;
  problem.query = {.batch = 72, .tokens = 3, .heads = 24};  // two row tiles
  problem.cache = {.max_pages = 1};
  problem.cache.page_size = 64;
  problem.options.softmax_scale = 1;
  problem.options.causal = true;
  const schedule::Geometry g = planned(problem);
  EXPECT_EQ(g.partition, Partition::kTurns);
  EXPECT_EQ(g.parts * g.lanes, kWorkers);
  EXPECT_EQ(schedule::max_merges(g), 0);
  // Queries that are ragged, tokens that are copied one by one, and groups of requests need a plan.
  DecodeProblem other = problem;
  other.query.ragged = true;
  EXPECT_NE(planned(other).partition, Partition::kTurns);
  other = problem;
  other.cache.page_size = 8;
  other.cache.max_pages = 8;
  EXPECT_NE(planned(other).partition, Partition::kTurns);
  other = problem;
  other.options.prefix_sharing = PrefixSharing::kAuto;
  EXPECT_NE(planned(other).partition, Partition::kTurns);
  // So do requests of many blocks, whose lengths a line balances.
  other = problem;
  other.cache.max_pages = 32;
  EXPECT_NE(planned(other).partition, Partition::kTurns);
}

}  // namespace
}  // namespace flashlatent
