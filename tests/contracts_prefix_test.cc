// Requests that attend to a shared prefix by groups, on every backend that is there: right, and right in all
// that a plan without groups is.
#include <algorithm>

#include "contracts.h"
#include "flashlatent/plan_description.h"
#include "runtime/device_memory.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

class Prefix : public Contracts {
 protected:
  /// Five requests in a row share `shared` tokens.
  static CaseSpec gqa(int heads, int kv_heads, int d, std::vector<int> lengths, int shared) {
    return {.name = "shared prefix",
            .layout = KvLayout::kSeparate,
            .heads = heads,
            .kv_heads = kv_heads,
            .qk_dim = d,
            .v_dim = d,
            .page_size = 16,
            .lengths = std::move(lengths),
            .prefix_sharing = PrefixSharing::kAlways,
            .sharers = 5,
            .shared_tokens = shared};
  }

  /// What the plan of a run says of groups.
  std::vector<PlanGroup> groups_of(const RandomCase& c, DecodeRun& run) {
    const Memory plan_memory = run.plan_memory();
    Result<runtime::Buffer> copy = runtime::Buffer::allocate(Executor{}, plan_memory.bytes);
    EXPECT_TRUE(copy.ok() && runtime::synchronize(executor_).ok());
    EXPECT_TRUE(runtime::copy_to_host(copy->data(), plan_memory.data, plan_memory.bytes, executor_).ok());
    Result<PlanDescription> plan =
        describe_plan(c.problem, c.inputs.cache_seqlens, copy->memory(), executor_);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? plan->groups : std::vector<PlanGroup>{};
  }

  /// The case once its requests have these lengths, at most those that it was made with. Past a request's
  /// pages the table has garbage: other requests' pages, and none.
  static RandomCase at_lengths(const RandomCase& c, const std::vector<int>& lengths) {
    RandomCase other{c.problem, c.inputs, {}};
    auto allocate = [&](std::size_t count) {
      other.storage.emplace_back(count * sizeof(std::int32_t));
      return reinterpret_cast<std::int32_t*>(other.storage.back().data());
    };
    const std::int64_t columns = c.problem.cache.max_pages;
    std::int32_t* stored = allocate(lengths.size());
    std::copy(lengths.begin(), lengths.end(), stored);
    std::int32_t* table = allocate(lengths.size() * columns);
    for (std::size_t request = 0; request < lengths.size(); ++request) {
      const std::int64_t pages =
          (lengths[request] + c.problem.cache.page_size - 1) / c.problem.cache.page_size;
      for (std::int64_t i = 0; i < columns; ++i) {
        const auto* from = static_cast<const std::int32_t*>(c.inputs.block_table.data);
        const std::int32_t garbage[] = {-1, from[(request + 1) % lengths.size() * columns], 0x7FFFFFFF};
        table[request * columns + i] = i < pages ? from[request * columns + i] : garbage[i % 3];
      }
    }
    other.inputs.cache_seqlens.data = stored;
    other.inputs.block_table.data = table;
    return other;
  }

  static std::vector<int> longest_of(const std::vector<std::vector<int>>& lists) {
    std::vector<int> most = lists[0];
    for (const std::vector<int>& list : lists) {
      for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], list[i]);
    }
    return most;
  }

  /// Planned for each of the first `plans` of these lengths and decoded at each; the first ones give groups.
  void expect_right_at_other_lengths(CaseSpec spec, const std::vector<std::vector<int>>& lists, int plans) {
    spec.lengths = longest_of(lists);
    if (!on_gpu()) executor_.threads = 7;  // so many parts
    if (!taken(spec)) return;
    const RandomCase all = runtime::make_case(spec, 9);
    for (int i = 0; i < plans; ++i) {
      const RandomCase planned = at_lengths(all, lists[i]);
      DecodeRun run = place(planned, executor_);
      ASSERT_TRUE(run.plan().ok());
      if (i == 0) {
        EXPECT_GT(groups_of(planned, run).size(), 0U);
      }
      for (const std::vector<int>& now : lists) {
        expect_right_with_plan_of(
            planned, at_lengths(all, now),
            to_string(all.problem) + ", planned for" + text_of(lists[i]) + ", now" + text_of(now));
      }
    }
  }
  static std::string text_of(const std::vector<int>& numbers) {
    std::string text;
    for (int number : numbers) text += " " + std::to_string(number);
    return text;
  }

  /// Right, in `groups` groups; or refused by those who cannot share it.
  void expect_right(const CaseSpec& spec, std::size_t groups, std::uint64_t seed = 1) {
    if (!taken(spec)) return;
    const RandomCase c = runtime::make_case(spec, seed);
    Contracts::expect_right(c, spec.name);
    DecodeRun run = place(c, executor_);
    ASSERT_TRUE(run.plan().ok());
    EXPECT_EQ(groups_of(c, run).size(), groups) << to_string(c.problem);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Prefix, kBackends, backend_name);

TEST_P(Prefix, LengthsAtBoundaries) {
  // Own tokens from none but the last on; blocks that are whole; a request that is shorter than the prefix.
  expect_right(gqa(8, 2, 128, {129, 130, 191, 192, 193, 128, 300, 128, 0, 257}, 128), 2);
  expect_right(gqa(8, 2, 128, {65, 66, 67, 68, 70, 1, 2, 3}, 64), on_gpu() ? 0 : 1);  // blocks of 128 there
  expect_right(gqa(8, 2, 64, {5000, 700, 900, 640, 1100}, 640), 1);
}

TEST_P(Prefix, OnePrefixOfManyRequests) {
  CaseSpec spec = gqa(8, 2, 128, {}, 1024);
  spec.sharers = 70;
  for (int i = 0; i < 70; ++i) spec.lengths.push_back(1024 + 1 + 7 * i);
  expect_right(spec, 1);
  spec.dtype = Dtype::kF16;
  expect_right(spec, 1);
}

TEST_P(Prefix, ManyGroups) {
  CaseSpec spec = gqa(8, 2, 64, {}, 128);
  spec.sharers = 2;
  for (int i = 0; i < 150; ++i) spec.lengths.push_back(129 + i % 7);
  expect_right(spec, 75);
}

TEST_P(Prefix, DimensionsAndGroups) {
  for (int d : {64, 80, 128, 256}) expect_right(gqa(8, 2, d, {200, 300, 400, 500, 600, 70}, 192), 1);
  for (int group : {1, 2, 3, 5, 8, 16}) {
    expect_right(gqa(group * 3, 3, 64, {200, 300, 400, 500, 600, 200, 300}, 192), 2);
  }
}

TEST_P(Prefix, LayoutsAndFormats) {
  CaseSpec spec = gqa(8, 2, 128, {200, 300, 400, 500, 600}, 192);
  for (KvLayout layout : {KvLayout::kSeparate, KvLayout::kPacked}) {
    spec.layout = layout;
    spec.format = KvFormat::kPlain;
    spec.scales = 0;
    expect_right(spec, 1);
    spec.format = KvFormat::kE4m3;
    spec.scales = 2;
    expect_right(spec, 1);
  }
  CaseSpec latent = gqa(8, 1, 576, {200, 300, 400, 500, 600}, 192);
  latent.layout = KvLayout::kLatent;
  latent.v_dim = 512;
  expect_right(latent, 1);
}

TEST_P(Prefix, PageSizesStridesAndPagesThatAreNone) {
  for (int page_size : {1, 8, 16, 48, 64, 256}) {
    CaseSpec spec = gqa(8, 2, 128, {600, 700, 800, 900, 1000}, 520);
    spec.page_size = page_size;
    expect_right(spec, 1);
    spec.strided = true;
    expect_right(spec, 1);
    spec.invalid_pages = true;  // a prefix ends before a negative page; how long it is depends on luck
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      if (taken(spec)) Contracts::expect_right(spec, seed);
    }
  }
}

TEST_P(Prefix, SeveralQueryTokens) {
  for (int tokens : {2, 4}) {
    CaseSpec spec = gqa(8, 2, 128, {192 + tokens, 300, 400, 191 + tokens, 600}, 192);
    spec.query_tokens = tokens;
    for (bool causal : {false, true}) {
      spec.causal = causal;
      expect_right(spec, 1);
    }
  }
}

constexpr int kPrefix = 256;  // whole blocks on every backend

/// Lengths of six requests around a prefix of kPrefix tokens, of five of them at first.
std::vector<std::vector<int>> lengths_around_a_prefix(int query_tokens) {
  std::vector<std::vector<int>> lists = {
      {500, 300, 420, 270, 1100, 700},   // the last but one is cut into parts
      {1200, 900, 280, 270, 300, 1000},  // far more blocks, and far fewer
      {501, 301, 421, 271, 1101, 701},   // a step later
      {564, 364, 484, 334, 1164, 764},   // a block later
      {100, 301, 0, 255, 1100, 1},       // some shorter than the prefix
      {0, 301, 421, 271, 1101, 701},     // the first one gone
      {200, 100, 30, 2, 1, 0},           // all shorter than the prefix
  };
  for (int more : {-1, 0, 1, query_tokens - 2, query_tokens - 1, query_tokens}) {
    lists.emplace_back(6, kPrefix + more);
  }
  return lists;
}

TEST_P(Prefix, APlanIsRightForOtherLengths) {
  for (int tokens : {1, 2, 3}) {
    CaseSpec spec = gqa(8, 2, 64, {}, kPrefix);
    spec.query_tokens = tokens;
    for (bool causal : {false, true}) {
      spec.causal = causal;
      expect_right_at_other_lengths(spec, lengths_around_a_prefix(tokens), 2);
    }
  }
}

TEST_P(Prefix, APlanIsRightForOtherLengthsInEveryLayout) {
  std::vector<std::vector<int>> lists = lengths_around_a_prefix(2);
  lists.erase(lists.begin() + 2, lists.begin() + 4);
  CaseSpec spec = gqa(16, 1, 128, {}, kPrefix);
  spec.query_tokens = 2;
  spec.causal = true;
  spec.sink = true;
  expect_right_at_other_lengths(spec, lists, 1);
  spec.dtype = Dtype::kF16;
  spec.page_size = 64;
  expect_right_at_other_lengths(spec, lists, 1);
  for (int d : {80, 256}) {
    spec = gqa(6, 6, d, {}, kPrefix);
    spec.page_size = 8;
    expect_right_at_other_lengths(spec, lists, 1);
  }
  spec = gqa(8, 2, 64, {}, kPrefix);
  spec.layout = KvLayout::kPacked;
  spec.format = KvFormat::kE4m3;
  spec.scales = 2;
  expect_right_at_other_lengths(spec, lists, 1);
}

TEST_P(Prefix, APlanOfManyRequestsIsRightForOtherLengths) {
  // Many requests, in tiles and parts of several; then each has its own way.
  constexpr int kRequests = 70;
  std::vector<std::vector<int>> lists(4);
  for (int i = 0; i < kRequests; ++i) {
    lists[0].push_back(kPrefix + 1);
    lists[1].push_back(kPrefix + 1 + i % 5);
    lists[2].push_back(i % 7 == 0 ? 0 : i % 3 == 0 ? i : kPrefix + 4 * i);
    lists[3].push_back(i < 40 ? 2 : 3 * kPrefix);
  }
  CaseSpec spec = gqa(8, 2, 64, {}, kPrefix);
  spec.sharers = kRequests;
  expect_right_at_other_lengths(spec, lists, 3);
}

TEST_P(Prefix, AutoIsRightForOtherLengths) {
  CaseSpec spec = gqa(32, 8, 128, {}, 2048);
  spec.prefix_sharing = PrefixSharing::kAuto;
  spec.sharers = 32;
  const std::vector<int> then(32, 2100);
  std::vector<int> now;
  for (int i = 0; i < 32; ++i) now.push_back(i % 4 == 0 ? 2047 - 60 * i : 2048 + 20 * i);
  spec.lengths = longest_of({then, now});
  if (!taken(spec)) GTEST_SKIP() << "no kernel takes it";
  const RandomCase all = runtime::make_case(spec, 3);
  const RandomCase planned = at_lengths(all, then);
  DecodeRun run = place(planned, executor_);
  ASSERT_TRUE(run.plan().ok());
  EXPECT_EQ(groups_of(planned, run).size(), 1U);
  expect_right_with_plan_of(planned, at_lengths(all, now), spec.name);
}

TEST_P(Prefix, DescribesAPlanAtOtherLengths) {
  CaseSpec spec = gqa(8, 2, 64, {1000, 1000, 1000}, kPrefix);
  if (!taken(spec)) GTEST_SKIP() << "no kernel takes it";
  const RandomCase c = runtime::make_case(spec, 3);
  DecodeRun run = place(at_lengths(c, {500, 500, 500}), executor_);
  ASSERT_TRUE(run.plan().ok());
  const Memory plan_memory = run.plan_memory();
  Result<runtime::Buffer> copy = runtime::Buffer::allocate(Executor{}, plan_memory.bytes);
  ASSERT_TRUE(copy.ok() && runtime::synchronize(executor_).ok());
  ASSERT_TRUE(runtime::copy_to_host(copy->data(), plan_memory.data, plan_memory.bytes, executor_).ok());
  const std::vector<int> lengths = {1000, 100, kPrefix};
  const RandomCase now = at_lengths(c, lengths);
  Result<PlanDescription> plan =
      describe_plan(c.problem, now.inputs.cache_seqlens, copy->memory(), executor_);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const int own[] = {1000 - kPrefix, 100, 0};
  std::vector<int> blocks(3);
  for (const PlanPart& part : plan->parts) {
    for (const PlanSegment& s : part.segments) blocks[s.request] += s.block_end - s.block_begin;
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(blocks[i], (own[i] + plan->block_tokens - 1) / plan->block_tokens * plan->rounds) << i;
  }
}

TEST_P(Prefix, SinkAndSoftCap) {
  CaseSpec spec = gqa(8, 2, 128, {200, 300, 400, 500, 600}, 192);
  spec.sink = true;
  expect_right(spec, 1);
  spec.soft_cap = 3;
  expect_right(spec, 1);
}

TEST_P(Prefix, HugeLogits) {
  CaseSpec spec = gqa(8, 2, 128, {200, 300, 400, 500, 600, 1000, 1100}, 192);
  spec.logit_scale = 100;
  expect_right(spec, 2);
}

TEST_P(Prefix, SameBitsAndPoison) {
  CaseSpec spec = gqa(8, 2, 128, {1000, 300, 400, 500, 600, 1000, 1100}, 192);
  ASSERT_TRUE(taken(spec));
  expect_same_bits(spec);
}

TEST_P(Prefix, LiveNanReachesTheOutputsOfAllThatShareIt) {
  const CaseSpec spec = gqa(8, 2, 128, {200, 300, 400, 500, 600, 250}, 192);
  ASSERT_TRUE(taken(spec));
  for (const bool key : {false, true}) {
    RandomCase c = runtime::make_case(spec, 5);
    const ConstTensorView& cache = key ? c.inputs.key_cache : c.inputs.value_cache;
    const auto* table = static_cast<const std::int32_t*>(c.inputs.block_table.data);
    auto* element = static_cast<std::uint16_t*>(const_cast<void*>(cache.data)) + table[3] * cache.strides[0] +
                    5 * cache.strides[1] + 7;
    *element = 0x7FC0;
    Contracts::expect_right(c, key ? "NaN in a key" : "NaN in a value");
  }
}

TEST_P(Prefix, WithoutPagesOrOffNothingIsShared) {
  CaseSpec spec = gqa(8, 2, 128, {200, 300, 400, 500, 600}, 192);
  ASSERT_TRUE(taken(spec));
  const RandomCase c = runtime::make_case(spec, 3);
  DecodeRun run = place(c, executor_);
  ASSERT_TRUE(plan(c.problem, run.inputs().cache_seqlens, run.plan_memory(), executor_).ok());
  EXPECT_TRUE(groups_of(c, run).empty());
  ASSERT_TRUE(run.decode().ok());
  ASSERT_TRUE(run.fetch().ok());
  EXPECT_TRUE(runtime::compare(c.problem, c.inputs, run.out(), run.lse()).ok());
  spec.prefix_sharing = PrefixSharing::kOff;
  expect_right(spec, 0);
}

TEST_P(Prefix, AutoSharesWhatPaysAndNothingElse) {
  CaseSpec spec = gqa(32, 8, 128, std::vector<int>(32, 2100), 2048);
  spec.prefix_sharing = PrefixSharing::kAuto;
  spec.sharers = 32;
  ASSERT_TRUE(taken(spec));
  const RandomCase c = runtime::make_case(spec, 3);
  DecodeRun run = place(c, executor_);
  ASSERT_TRUE(run.plan().ok());
  const std::vector<PlanGroup> groups = groups_of(c, run);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].tokens, 2048);
  EXPECT_EQ(groups[0].requests.size(), 32U);
  spec.lengths = std::vector<int>(32, 100);
  spec.sharers = 2;  // pairs with a block in common
  spec.shared_tokens = 64;
  expect_right(spec, 0);
}

/// Where no page table could make sharing pay, auto is off to the last bit: the same plan, kernel and grid.
TEST_P(Prefix, AutoIsOffWhereNothingCanBeGained) {
  for (int batch : {1, 2, 16}) {
    CaseSpec spec = gqa(32, 8, 128, std::vector<int>(batch, batch == 1 ? 5000 : 700), 512);
    spec.sharers = batch;
    const DecodeProblem off = [&] {
      spec.prefix_sharing = PrefixSharing::kOff;
      return runtime::problem_of(spec);
    }();
    spec.prefix_sharing = PrefixSharing::kAuto;
    const DecodeProblem problem = runtime::problem_of(spec);
    Result<std::string> why = explain(problem, executor_);
    ASSERT_TRUE(why.ok());
    if (batch > 1 && !on_gpu()) continue;  // there it pays
    EXPECT_NE(why->find("nothing would be gained"), std::string::npos) << *why;
    EXPECT_EQ(*plan_bytes(problem, executor_), *plan_bytes(off, executor_));
    EXPECT_EQ(*workspace_bytes(problem, executor_), *workspace_bytes(off, executor_));
    expect_right(spec, 0);
  }
}

TEST_P(Prefix, WhatCannotBeSharedIsNot) {
  CaseSpec spec = gqa(8, 2, 128, {200, 300, 400, 500, 600}, 192);
  auto check = [&](const CaseSpec& changed, const char* word) {
    CaseSpec always = changed;
    const Status status = plan_bytes(runtime::problem_of(always), executor_).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << word;
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    CaseSpec automatic = changed;
    automatic.prefix_sharing = PrefixSharing::kAuto;
    ASSERT_TRUE(taken(automatic));
    Result<std::string> why = explain(runtime::problem_of(automatic), executor_);
    ASSERT_TRUE(why.ok());
    EXPECT_NE(why->find("shares no prefixes"), std::string::npos) << *why;
    expect_right(automatic, 0);
  };
  CaseSpec changed = spec;
  changed.batch_invariant = true;
  check(changed, "batch_invariant");
  changed = spec;
  changed.window = 100;
  check(changed, "window");
  changed = spec;
  changed.alibi = true;
  check(changed, "alibi");
  changed = spec;
  changed.ragged_tokens = {1, 2, 0, 1, 1};
  check(changed, "ragged");
  changed = spec;
  changed.query_tokens = 40;
  check(changed, "query rows");
}

TEST_P(Prefix, BadPagesAreNamed) {
  const CaseSpec spec = gqa(8, 2, 128, {200, 300, 400, 500, 600}, 192);
  ASSERT_TRUE(taken(spec));
  const RandomCase c = runtime::make_case(spec, 3);
  DecodeRun run = place(c, executor_);
  HostPages pages{c.inputs.block_table, c.inputs.cache_seqlens};
  pages.block_table.shape[1] -= 1;
  Status status = plan(c.problem, run.inputs().cache_seqlens, pages, run.plan_memory(), executor_);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("pages.block_table"), std::string::npos) << status.message();
  pages = {c.inputs.block_table, {}};
  status = plan(c.problem, run.inputs().cache_seqlens, pages, run.plan_memory(), executor_);
  EXPECT_NE(status.message().find("pages.cache_seqlens"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace flashlatent
