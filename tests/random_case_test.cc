// What tests rely on in random cases.
#include "runtime/random_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numbers>
#include <vector>

#include "contracts.h"
#include "cpu/reference.h"

namespace flashlatent {
namespace {

/// The lse of row (0, 0, head), in base 2, had the request so many tokens.
double lse_of(const runtime::RandomCase& c, int head, std::int32_t tokens) {
  DecodeInputs inputs = c.inputs;
  inputs.cache_seqlens.data = &tokens;
  return cpu::reference_row(c.problem, inputs, 0, 0, head).lse * std::numbers::log2e;
}

runtime::RandomCase case_of(KvFormat format, const std::vector<float>& steps, int length) {
  return runtime::make_case({.format = format,
                             .heads = 4,
                             .lengths = {length},
                             .score_steps = steps,
                             .step_tokens = ScoreSteps::kTokens},
                            1);
}

TEST(RandomCase, ScoresRiseByTheirSteps) {
  const std::vector<float> steps = {0, 10, 20, 40};
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    const runtime::RandomCase c = case_of(format, steps, 4 * ScoreSteps::kTokens);
    for (int head = 0; head < 4; ++head) {
      for (int i = 1; i < 4; ++i) {
        const double rise =
            lse_of(c, head, (i + 1) * ScoreSteps::kTokens) - lse_of(c, head, i * ScoreSteps::kTokens);
        const double expected = (steps[i] - steps[i - 1]) * (1 - head / 4.0) * std::numbers::log2e;
        EXPECT_NEAR(rise, expected, 2 + 0.1 * expected) << "head " << head << ", step " << i;
      }
    }
  }
}

// After the first block a base that moves by 2^6 at least does so several times, in even and odd blocks, and
// of rows with a whole share of the steps more often than of those with a quarter.
TEST(RandomCase, HardScoreStepsMoveASoftmaxBase) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    int moves[4] = {}, moves_of_parity[2] = {};
    double largest = 0;
    for (const auto& [name, steps] : hard_score_steps()) {
      const int tokens = static_cast<int>(steps.size()) * ScoreSteps::kTokens;
      const runtime::RandomCase c = case_of(format, steps, tokens);
      for (int head = 0; head < 4; ++head) {
        const int before = moves[head];
        double base = lse_of(c, head, 64);
        for (int block = 1; block * 64 < tokens; ++block) {
          const double lse = lse_of(c, head, std::min(tokens, block * 64 + 64));
          if (lse <= base + 6) continue;
          ++moves[head];
          ++moves_of_parity[block % 2];
          largest = std::max(largest, lse - base);
          base = lse;
        }
        if (head == 0) {
          EXPECT_GE(moves[head] - before, 2) << name;
        }
      }
    }
    EXPECT_GE(moves[0], 7);
    EXPECT_GT(moves[0], moves[3]);
    EXPECT_GE(moves[3], 3);
    EXPECT_GE(std::min(moves_of_parity[0], moves_of_parity[1]), 5);
    EXPECT_GT(largest, 128);
  }
}

TEST(RandomCase, DrawsLengthsOfAnotherStep) {
  const runtime::CaseSpec plain = {.heads = 1, .lengths = {900, 0, 500, 1, 64}};
  EXPECT_FALSE(runtime::make_case(plain, 1).other_lengths.cache.present());
  for (PrefixSharing sharing : {PrefixSharing::kOff, PrefixSharing::kAuto}) {
    runtime::CaseSpec spec = plain;
    spec.other_lengths = true;
    spec.prefix_sharing = sharing;
    const runtime::RandomCase c = runtime::make_case(spec, 1);
    ASSERT_TRUE(c.other_lengths.cache.present());
    const auto* own = static_cast<const std::int32_t*>(c.inputs.cache_seqlens.data);
    const auto* other = static_cast<const std::int32_t*>(c.other_lengths.cache.data);
    EXPECT_FALSE(std::equal(own, own + 5, other));
    for (int i = 0; i < 5; ++i) {
      EXPECT_GE(other[i], 0);
      EXPECT_LE(other[i], sharing == PrefixSharing::kOff ? 900 : own[i]);
    }
  }
}

}  // namespace
}  // namespace flashlatent
