// Few requests whose contexts ranks share, by mla_64_pingpong. No device is asked.
#include <gtest/gtest.h>

#include "cuda/sm90/kernels/mla_64_pingpong/takes.h"
#include "pingpong_plan.h"

namespace flashlatent {
namespace {

constexpr int kWorkers = 132;

DecodeProblem problem_of(int batch, int tokens, int max_pages) {
  DecodeProblem problem;
  problem.query = {.batch = batch, .tokens = tokens, .heads = 64};
  problem.cache.max_pages = max_pages;
  problem.options.softmax_scale = 1;
  problem.options.causal = true;
  return problem;
}

schedule::Geometry planned(const DecodeProblem& problem) {
  return pingpong_plan(problem, kWorkers);
}

// Instances of shares by boxes, and of teams, do not know the spans that drafts see (Config::kSpans).
TEST(DispatchShard, DraftsAreSharedOutTokenByTokenAndByNoTeam) {
  using cuda::Loading;
  for (const int world : {1, 2}) {
    for (const int tokens : {1, 2}) {
      const bool spans = world > 1 && tokens > 1;
      DecodeProblem shares = problem_of(1, tokens, 256), teams = problem_of(8, tokens, 8);
      shares.options.shard.world = teams.options.shard.world = world;
      const schedule::Geometry g = planned(shares);
      EXPECT_TRUE(mla_64_pingpong::has_shares(g));
      EXPECT_EQ(mla_64_pingpong::share_key_of(shares, g).loading, spans ? Loading::kTokens : Loading::kBoxes);
      EXPECT_EQ(planned(teams).team > 1, !spans) << world << " ranks, s_q " << tokens;
      shares.options.causal = false;  // all rows see the same tokens
      EXPECT_EQ(mla_64_pingpong::share_key_of(shares, g).loading, Loading::kBoxes);
    }
  }
}

}  // namespace
}  // namespace flashlatent
