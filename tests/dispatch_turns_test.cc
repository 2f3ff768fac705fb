// Sparse decode by two lists whose lengths shapes tell: whole items in turn. No device is asked.
#include <gtest/gtest.h>

#include "cuda/common/dense_choice.h"
#include "cuda/mla_64_pingpong/choice.h"
#include "dispatch/select.h"
#include "plan/host_plan.h"

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
  Executor executor;
  executor.backend = Backend::kCuda;
  executor.kernel = "mla_64_pingpong";
  const Result<std::vector<Candidate>> list = candidates(problem, executor, kWorkers);
  EXPECT_TRUE(list.ok());
  const Candidate* best = cheapest(*list);
  EXPECT_NE(best, nullptr);
  return best->geometry;
}
schedule::Geometry of_call(const DecodeProblem& problem) {
  return mla_64_pingpong::geometry_of_call(problem, planned(problem));
}

TEST(Turns, WholeItemsWhereRoundsAreNearlyFull) {
  // 256 items on 132 parts, or on 66 pairs: two rounds of 10 blocks and four of 18.
  for (auto [heads, extra, parts] : {std::array{64, 512, 132}, {128, 1024, 66}}) {
    const DecodeProblem problem = problem_of(128, 2, heads, extra);
    EXPECT_EQ(planned(problem).partition, Partition::kLine) << heads;
    const schedule::Geometry g = of_call(problem);
    EXPECT_EQ(g.partition, Partition::kTurns) << heads;
    EXPECT_EQ(g.parts, parts);
    EXPECT_EQ(schedule::max_merges(g), 0);
    EXPECT_TRUE(mla_64_pingpong::has_items_in_turn(problem, g));
  }
  // No more items than parts.
  const schedule::Geometry g = of_call(problem_of(64, 2, 64, 512));
  EXPECT_EQ(g.partition, Partition::kTurns);
  EXPECT_EQ(g.parts, 128);
}

TEST(Turns, AsPlannedOtherwise) {
  // A second round for 28 of 160 items, of 66 blocks.
  EXPECT_EQ(of_call(problem_of(160, 1, 64, 4096)).partition, Partition::kLine);
  // Shares of few requests.
  EXPECT_EQ(of_call(problem_of(2, 2, 64, 512)).partition, Partition::kEvenShares);
  DecodeProblem invariant = problem_of(128, 2, 64, 512);
  invariant.options.batch_invariant = true;
  EXPECT_EQ(of_call(invariant).partition, Partition::kFixedSplits);
  // One list of another kernel's, and rows that attend to different tokens.
  DecodeProblem one_list = problem_of(128, 2, 64, 0);
  one_list.cache.format = KvFormat::kFp8_656;
  one_list.cache.qk_dim = 576;
  EXPECT_EQ(of_call(one_list).partition, planned(one_list).partition);
  DecodeProblem ragged = problem_of(128, 2, 64, 512);
  ragged.query.ragged = true;
  EXPECT_FALSE(cuda::has_rows_alike(ragged));
  EXPECT_EQ(mla_64_pingpong::geometry_of_call(ragged, planned(problem_of(128, 2, 64, 512))).partition,
            Partition::kLine);
}

TEST(Turns, LengthsGivenAreNotShapes) {
  const DecodeProblem problem = problem_of(128, 2, 64, 512);
  DecodeInputs inputs;
  EXPECT_TRUE(cuda::shapes_tell_lengths(problem, inputs));
  ConstTensorView lengths;
  lengths.rank = 1;
  for (auto field :
       {&DecodeInputs::topk_length, &DecodeInputs::extra_topk_length, &DecodeInputs::extra_cache_seqlens}) {
    DecodeInputs given = inputs;
    given.*field = lengths;
    EXPECT_FALSE(cuda::shapes_tell_lengths(problem, given));
  }
  DecodeProblem dense = problem;
  dense.sparse = {};
  EXPECT_FALSE(cuda::shapes_tell_lengths(dense, inputs));
}

}  // namespace
}  // namespace flashlatent
