// Which tokens of a context a rank holds.
#include "core/token_shard.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "flashlatent/problem.h"

namespace flashlatent {
namespace {

TEST(TokenShard, CountsAndPlacesAreThoseOfCountingOneByOne) {
  for (int world : {1, 2, 3, 4, 8}) {
    for (int run : {1, 2, 3, 16, 64}) {
      for (int rank = 0; rank < world; ++rank) {
        const TokenShard shard(rank, world, run);
        int held = 0;
        for (int position = 0; position < 700; ++position) {
          ASSERT_EQ(shard.held(position), held)
              << rank << "/" << world << " run " << run << " at " << position;
          if (position / run % world != rank) continue;
          ASSERT_EQ(shard.position(held), position) << rank << "/" << world << " run " << run;
          ++held;
        }
      }
    }
  }
}

TEST(TokenShard, RanksHoldEveryTokenOnce) {
  for (std::int32_t length : {0, 1, 1'000'003, std::numeric_limits<std::int32_t>::max()}) {
    for (int run : {1, 64, 1 << 20}) {
      std::int64_t all = 0;
      for (int rank = 0; rank < 7; ++rank) all += TokenShard(rank, 7, run).held(length);
      EXPECT_EQ(all, length) << run;
    }
  }
}

TEST(TokenShard, NothingIsHeldOfANegativeLength) {
  EXPECT_EQ(TokenShard(0, 2, 1).held(-5), 0);
}

TEST(TokenShard, WrongShardsAreRefusedByField) {
  DecodeProblem problem;
  problem.options.softmax_scale = 1;
  auto refusal = [&](ContextShard shard) {
    problem.options.shard = shard;
    return validate(problem).message();
  };
  EXPECT_TRUE(refusal({1, 2, 64}).empty());
  EXPECT_EQ(refusal({2, 2, 1}), "shard rank is 2; it must be from 0 to 1");
  EXPECT_EQ(refusal({0, 0, 1}), "shard world is 0; it must be from 1 to 65536");
  EXPECT_EQ(refusal({0, 2, 0}), "shard run is 0; it must be from 1 to 1048576");
  EXPECT_EQ(refusal({0, 1 << 16, 1 << 20}),
            "shard world x run is 68719476736; it must be from 1 to 1073741824");
  problem.options.attn_sink = true;
  EXPECT_EQ(refusal({0, 2, 1}),
            "shard world is 2 and attn_sink is set; a sink is applied once, by combine()");
  problem.options.attn_sink = false;
  problem.sparse = {.enabled = true, .topk = 4};
  EXPECT_EQ(refusal({0, 2, 1}),
            "shard world is 2; in sparse decode the indices name a rank's own tokens, leave the shard out");
}

}  // namespace
}  // namespace flashlatent
