// The hint of how long contexts are: what is chosen follows it, what is right does not. No device is asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "cached.h"
#include "choose/typical.h"
#include "dispatch/select.h"
#include "plan/describe.h"
#include "plan/host_plan.h"
#include "plan/token_lists.h"

namespace flashlatent {
namespace {

constexpr int kReach = 131072;
constexpr int kWorkers = 132;

const Cached kCached[] = {
    {.name = "bf16"},
    {.name = "pages of 1", .page_size = 1},
    {.name = "sparse", .sparse = true},
    {.name = "320/256", .qk_dim = 320, .v_dim = 256},
    {.name = "fp8_656", .format = KvFormat::kFp8_656},
    {.name = "fp8_584", .format = KvFormat::kFp8_584, .qk_dim = 512},
    {.name = "fp8_584, window", .format = KvFormat::kFp8_584, .qk_dim = 512, .window = 4096},
    {.name = "e4m3", .format = KvFormat::kE4m3},
    {.name = "separate", .layout = KvLayout::kSeparate, .qk_dim = 128, .v_dim = 128},
    {.name = "separate, 8 KV heads",
     .layout = KvLayout::kSeparate,
     .qk_dim = 128,
     .v_dim = 128,
     .kv_heads = 8},
    {.name = "separate, window", .layout = KvLayout::kSeparate, .qk_dim = 128, .v_dim = 128, .window = 512},
    {.name = "packed e4m3",
     .layout = KvLayout::kPacked,
     .format = KvFormat::kE4m3,
     .qk_dim = 128,
     .v_dim = 128},
};

DecodeProblem with_hint(DecodeProblem problem, int tokens) {
  problem.options.typical_tokens = tokens;
  return problem;
}

std::vector<Candidate> candidates_of(const DecodeProblem& problem) {
  Executor executor;
  executor.backend = Backend::kCuda;
  Result<std::vector<Candidate>> list = candidates(problem, executor, kWorkers);
  if (!list.ok()) throw std::runtime_error(to_string(problem) + ": " + list.status().message());
  return std::move(*list);
}

/// Calls `f` with problems without the hint.
template <class F>
void for_each_problem(F f) {
  for (const Cached& cached : kCached) {
    for (int batch : {1, 2, 4, 8, 16, 40, 64, 96, 128, 200}) {
      for (int heads : {8, 16, 24, 64, 128}) f(problem_of(cached, batch, kReach, heads));
    }
  }
}

// As with a page table of that many tokens.
TEST(TypicalTokens, DecideWhatIsChosen) {
  for (const Cached& cached : kCached) {
    for (int batch : {1, 4, 16, 64, 128}) {
      for (int heads : {8, 16, 64, 128}) {
        for (int tokens : {64, 1024, 4096, 32768}) {
          const DecodeProblem hinted = with_hint(problem_of(cached, batch, kReach, heads), tokens);
          const std::vector<Candidate> list = candidates_of(hinted);
          const std::vector<Candidate> shorter = candidates_of(problem_of(cached, batch, tokens, heads));
          ASSERT_EQ(cheapest(list)->kernel, cheapest(shorter)->kernel) << to_string(hinted);
          for (std::size_t i = 0; i < list.size(); ++i) {
            if (!list[i].reason.empty()) continue;
            ASSERT_EQ(list[i].times.equal, shorter[i].times.equal)
                << list[i].kernel->name << to_string(hinted);
            ASSERT_EQ(list[i].geometry.partition, shorter[i].geometry.partition) << to_string(hinted);
            ASSERT_EQ(list[i].geometry.parts, shorter[i].geometry.parts) << to_string(hinted);
          }
        }
      }
    }
  }
}

// One short request under an engine's page table: 5.9 us by a team, 11.7 by what a long one gets.
TEST(TypicalTokens, ChooseTeamsForAShortRequestUnderALongTable) {
  const DecodeProblem problem = problem_of(kCached[0], 1, kReach, 64);
  EXPECT_STREQ(cheapest(candidates_of(problem))->kernel->name, "mla_64_pingpong");
  const std::string chosen = cheapest(candidates_of(with_hint(problem, 1024)))->kernel->name;
  EXPECT_TRUE(chosen.starts_with("mla_16_team")) << chosen;
}

// Callers bring buffers once, whatever later calls expect.
TEST(TypicalTokens, ChangeNoSizes) {
  for_each_problem([](const DecodeProblem& problem) {
    const std::vector<Candidate> list = candidates_of(problem);
    const Sizes sizes = sizes_of(problem, list, *cheapest(list));
    for (int tokens : {1, 64, 512, 1024, 4096, 16384, 65536}) {
      const DecodeProblem hinted = with_hint(problem, tokens);
      const std::vector<Candidate> of_hint = candidates_of(hinted);
      const Sizes with = sizes_of(hinted, of_hint, *cheapest(of_hint));
      ASSERT_EQ(with.plan, sizes.plan) << to_string(hinted);
      ASSERT_EQ(with.workspace, sizes.workspace) << to_string(hinted);
    }
  });
}

/// What a kernel's plan for these lengths has.
Result<PlanDescription> plan_of(const Candidate& candidate, const std::vector<std::int32_t>& lengths) {
  const schedule::Geometry& g = candidate.geometry;
  std::vector<std::max_align_t> memory(schedule::plan_bytes(g) / sizeof(std::max_align_t) + 1);
  const Memory plan{memory.data(), memory.size() * sizeof(std::max_align_t)};
  if (g.lists == 2) {
    const auto batch = static_cast<std::int64_t>(lengths.size());
    const schedule::UnionLengths both =
        schedule::union_lengths({ConstTensorView(lengths.data(), Dtype::kI32, {batch}), {}});
    schedule::build_on_host(g, both, memory.data());
    return describe_plan(g, both, plan, candidate.kernel->name);
  }
  schedule::build_on_host(g, lengths.data(), memory.data());
  return describe_plan(g, lengths.data(), plan, candidate.kernel->name);
}

/// (first block, end) of each item's segments, in order.
using Covered = std::map<std::pair<int, int>, std::vector<std::pair<int, int>>>;

Covered covered_by(const PlanDescription& plan) {
  Covered covered;
  for (const PlanPart& part : plan.parts) {
    for (const PlanSegment& s : part.segments) {
      if (s.block_begin < s.block_end) covered[{s.round, s.request}].emplace_back(s.block_begin, s.block_end);
    }
  }
  for (auto& [item, segments] : covered) std::sort(segments.begin(), segments.end());
  return covered;
}

// Lengths far beyond the hint, and of none: each block is still done once, as without the hint.
TEST(TypicalTokens, LeaveAnyLengthsRight) {
  for_each_problem([](const DecodeProblem& problem) {
    for (int tokens : {1, 1024, 16384}) {
      const DecodeProblem hinted = with_hint(problem, tokens);
      for (const Candidate& candidate : candidates_of(hinted)) {
        if (!candidate.reason.empty()) continue;
        const schedule::Geometry& g = candidate.geometry;
        ASSERT_EQ(g.max_tokens, candidate.at_reach.max_tokens) << to_string(hinted);
        ASSERT_EQ(g.list[0].reach, candidate.at_reach.list[0].reach) << to_string(hinted);
        std::vector<std::int32_t> lengths(problem.query.batch);
        for (std::size_t i = 0; i < lengths.size(); ++i) {
          constexpr std::int32_t kSome[] = {kReach, 0, 1, 1024, kReach / 2 + 1, 63, 20000};
          lengths[i] = kSome[i % std::size(kSome)];
        }
        Result<PlanDescription> plan = plan_of(candidate, lengths);
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        for (const auto& [item, segments] : covered_by(*plan)) {
          ASSERT_EQ(segments.front().first, 0) << candidate.kernel->name << ": " << to_string(hinted);
          for (std::size_t i = 1; i < segments.size(); ++i) {
            ASSERT_EQ(segments[i].first, segments[i - 1].second) << candidate.kernel->name;
          }
        }
        // gqa_128 walks its tiles by itself.
        if (std::string(candidate.kernel->name) == "gqa_128") continue;
        Candidate at_reach = candidate;
        at_reach.geometry = candidate.at_reach;
        Result<PlanDescription> without = plan_of(at_reach, lengths);
        ASSERT_TRUE(without.ok());
        const auto blocks_of = [&](const PlanDescription& of) {
          std::map<int, std::int64_t> blocks;
          for (const auto& [item, segments] : covered_by(of)) {
            blocks[item.second] = std::max<std::int64_t>(blocks[item.second], segments.back().second);
          }
          return blocks;
        };
        ASSERT_EQ(blocks_of(*plan), blocks_of(*without)) << candidate.kernel->name << to_string(hinted);
      }
    }
  });
}

TEST(TypicalTokens, AreWithoutEffectWhereNothingMayDependOnThem) {
  const DecodeProblem problem = problem_of(kCached[0], 4, kReach, 16);
  EXPECT_FALSE(typical_problem(problem).has_value());
  EXPECT_TRUE(typical_problem(with_hint(problem, 1024)).has_value());
  // As far as the page table reaches, and beyond.
  for (int tokens : {kReach - 1, kReach, kReach + 1, 2147483647}) {
    EXPECT_FALSE(typical_problem(with_hint(problem, tokens)).has_value()) << tokens;
  }
  DecodeProblem other = with_hint(problem, 1024);
  other.options.batch_invariant = true;
  EXPECT_FALSE(typical_problem(other).has_value());
  other = with_hint(problem_of(kCached[8], 64, kReach, 8), 1024);
  other.options.prefix_sharing = PrefixSharing::kAuto;
  EXPECT_FALSE(typical_problem(other).has_value());
}

TEST(TypicalTokens, CountToTheEndOfAPage) {
  const DecodeProblem problem = problem_of(kCached[0], 4, kReach, 16);
  EXPECT_EQ(typical_problem(with_hint(problem, 1))->cache.max_pages, 1);
  EXPECT_EQ(typical_problem(with_hint(problem, 64))->cache.max_pages, 1);
  EXPECT_EQ(typical_problem(with_hint(problem, 65))->cache.max_pages, 2);
  EXPECT_EQ(typical_problem(with_hint(problem_of(kCached[2], 4, kReach, 16), 65))->sparse.topk, 65);
  // Lengths are of whole contexts, of which this rank has a quarter.
  DecodeProblem shared = with_hint(problem, 1024);
  shared.options.shard = {.rank = 1, .world = 4, .run = 1};
  EXPECT_EQ(typical_problem(shared)->cache.max_pages, 4);
}

TEST(TypicalTokens, AreChecked) {
  const Status status = validate(with_hint(problem_of(kCached[0], 4, kReach, 16), -1));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("typical_tokens is -1"), std::string::npos) << status.message();
  const std::string text = to_string(with_hint(problem_of(kCached[0], 4, kReach, 16), 1024));
  EXPECT_NE(text.find(" typical_tokens=1024"), std::string::npos) << text;
}

}  // namespace
}  // namespace flashlatent
