// The table of costs, and what it makes of some calls. No device is asked.
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "cost/model.h"
#include "dispatch/kernel_table.h"
#include "dispatch/select.h"

namespace flashlatent {
namespace {

using cost::Field;
using cost::Kernel;
using cost::Row;
using cost::Situation;

TEST(CostTable, HasEachConstantOnceAndSaysWhereItIsFrom) {
  std::set<std::string> constants;
  for (const Row& row : cost::rows::kH200) {
    const std::string text = to_string(row);
    EXPECT_TRUE(constants.insert(text.substr(0, text.find(':'))).second) << text;
    EXPECT_NE(std::string(row.from), "") << text;
  }
}

TEST(CostTable, IsOfKernelsThatThereAre) {
  for (const Row& row : cost::rows::kH200) {
    if (row.kernel == Kernel::kLatent) continue;
    const std::string name = cost::kKernelNames[static_cast<std::size_t>(row.kernel)];
    bool known = false;
    for (const DecodeKernel& kernel : decode_kernels()) known |= name == kernel.name;
    EXPECT_TRUE(known) << to_string(row);
  }
}

TEST(CostTable, PrintsItself) {
  EXPECT_EQ(to_string(Row{Kernel::kTrio, Situation::kRows64ByTokens, Field::kPerBlockAlone, 1550, "a.md"}),
            "trio rows64_by_tokens per_block_alone: 1550 ns, from a.md");
  EXPECT_EQ(to_string(Row{Kernel::kPaged, Situation::kByTokens, Field::kPerMember, -1, "b.json"}),
            "paged by_tokens per_member: -1 ns, from b.json");
  EXPECT_EQ(
      cost::to_string(schedule::CostModel{.per_block = 1, .per_split = 2, .per_call = -3, .per_merge = 4}),
      "per_block 1, per_split 2, per_call -3, per_merge 4, per_block_alone 0 ns");
}

TEST(CostModel, AddsWhatACallTakesMore) {
  schedule::CostModel costs = {.per_block = 10, .per_split = 20, .per_call = 30, .per_merge = 40};
  cost::add(costs, {.per_block = 0, .per_split = 0, .per_call = -5, .per_merge = 2});
  EXPECT_EQ(cost::to_string(costs),
            "per_block 10, per_split 20, per_call 25, per_merge 42, per_block_alone 0 ns");
}

TEST(CostModel, CountsBytesAtTheShareOfTheBandwidth) {
  EXPECT_EQ(cost::by_memory({.per_block = 0, .per_split = 7}, 348).per_block, 10);
  EXPECT_EQ(cost::by_memory({}, 1).per_block, 1);
  EXPECT_EQ(cost::block_alone(650), 348);
  EXPECT_EQ(cost::by_team({.per_block = 80}, 8).per_block, 10);
}

struct Call {
  int batch, tokens, heads;
  const char* kernel;
  std::int64_t estimate;  ///< Nanoseconds.
  KvFormat format = KvFormat::kPlain;
  bool sparse = false;
  int page_size = 64;
  int separate_heads = 0;  ///< KV heads of separate keys and values; 0: a latent cache.
};

/// What the picks were measured with. A line that a refit changes is one to look at.
constexpr Call kCalls[] = {
    {1, 1024, 16, "mma16_team16", 6215},
    {1, 4096, 16, "mma16_team8", 7186},
    {4, 4096, 16, "mma16_team8", 10624},
    {16, 4096, 16, "mma16", 28216},
    {64, 4096, 16, "mma16", 76460},
    {128, 4096, 16, "mma16", 131948},
    {128, 4096, 8, "etap", 130948},
    {1, 8192, 128, "seesaw", 13200},
    {8, 8192, 64, "seesaw", 29350},
    {32, 2048, 128, "trio", 34940},
    {48, 4096, 128, "trio", 92840},
    {96, 4096, 64, "seesaw", 106400},
    {128, 4096, 128, "trio", 221880},
    {128, 4096, 64, "trio", 137544, KvFormat::kPlain, false, 1},
    {1, 4096, 16, "direct_team8", 12892, KvFormat::kFp8_656},
    {32, 2048, 16, "direct", 29007, KvFormat::kFp8_656, true},
    {128, 4096, 32, "direct", 137500, KvFormat::kFp8_656},
    {128, 4096, 64, "quartet", 146800, KvFormat::kFp8_656},
    {2, 2048, 128, "seesaw", 22200, KvFormat::kFp8_656, true},
    {64, 2048, 128, "trio", 56040, KvFormat::kPlain, true},
    {64, 4096, 32, "paged", 249024, KvFormat::kPlain, false, 16, 8},
    {1, 4096, 32, "paged_128", 10486, KvFormat::kPlain, false, 16, 8},
    {16, 4096, 32, "paged_128", 14286, KvFormat::kPlain, false, 16, 1},
    {1, 512, 32, "paged", 5880, KvFormat::kPlain, false, 16, 8},
};

DecodeProblem problem_of(const Call& call) {
  DecodeProblem problem;
  problem.query.batch = call.batch;
  problem.query.heads = call.heads;
  problem.options.softmax_scale = 1;
  auto& cache = problem.cache;
  cache.format = call.format;
  cache.page_size = call.page_size;
  if (call.separate_heads > 0) {
    cache.layout = KvLayout::kSeparate;
    cache.heads = call.separate_heads;
    cache.qk_dim = cache.v_dim = 128;
  }
  if (call.sparse) {
    problem.sparse = {.enabled = true, .topk = call.tokens};
  } else {
    cache.max_pages = (call.tokens + call.page_size - 1) / call.page_size;
  }
  return problem;
}

TEST(Costs, PickWhatTheyWereMeasuredToPick) {
  Executor executor;
  executor.backend = Backend::kCuda;
  for (const Call& call : kCalls) {
    const DecodeProblem problem = problem_of(call);
    Result<std::vector<Candidate>> list = candidates(problem, executor, 132);
    ASSERT_TRUE(list.ok()) << list.status().message();
    const Candidate* picked = cheapest(*list);
    ASSERT_NE(picked, nullptr);
    EXPECT_STREQ(picked->kernel->name, call.kernel) << to_string(problem);
    EXPECT_EQ(picked->estimate, call.estimate) << to_string(problem);
  }
}

}  // namespace
}  // namespace flashlatent
