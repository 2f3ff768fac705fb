// The sample of rows that benchmarks are judged by.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/element.h"
#include "runtime/bench_check.h"

namespace flashlatent::runtime {
namespace {

class BenchCheck : public testing::Test {
 protected:
  /// Decodes `lengths` with 2 query tokens of 8 heads.
  BenchInput decoded(const std::vector<int>& lengths, int page_size) {
    DecodeProblem problem;
    problem.cache.dtype = Dtype::kF16;
    problem.options.causal = true;
    return decoded(problem, lengths, page_size);
  }
  BenchInput decoded(DecodeProblem problem, const std::vector<int>& lengths, int page_size) {
    problem.query.tokens = 2;
    problem.query.heads = 8;
    problem.cache.page_size = page_size;
    problem.options.softmax_scale = 1.0F / 24;
    BenchInput input = std::move(*make_bench_input(problem, lengths, 1.0F, 3, executor_));
    const Buffer plan_memory = std::move(*Buffer::allocate(executor_, *plan_bytes(input.problem, executor_)));
    const Buffer workspace =
        std::move(*Buffer::allocate(executor_, *workspace_bytes(input.problem, executor_)));
    EXPECT_TRUE(plan(input.problem, input.inputs.cache_seqlens, plan_memory.memory(), executor_).ok());
    EXPECT_TRUE(decode(input.problem, input.inputs, input.outputs, plan_memory.memory(), workspace.memory(),
                       executor_)
                    .ok());
    return input;
  }

  Executor executor_;
};

TEST_F(BenchCheck, RightResultsPass) {
  for (int page_size : {1, 48, 64}) {
    const BenchInput input = decoded({130, 0, 64, 257}, page_size);
    const Result<Comparison> all = compare_sample(input, 1000, executor_);
    ASSERT_TRUE(all.ok()) << all.status().message();
    EXPECT_TRUE(all->ok()) << to_string(*all);
    EXPECT_EQ(all->rows, 2 * 2 * 8);
    EXPECT_GT(all->rmse, 0);
    EXPECT_LT(all->rmse, 1e-3);
    const Result<Comparison> some = compare_sample(input, 10, executor_);
    ASSERT_TRUE(some.ok());
    EXPECT_EQ(some->rows, 11);  // every third
  }
  const Result<Comparison> one = compare_sample(decoded({5}, 64), 1000, executor_);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->rows, 2 * 8);
}

TEST_F(BenchCheck, SparseAndFp8) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    for (bool sparse : {true, false}) {
      DecodeProblem problem;
      problem.cache.format = format;
      if (sparse) problem.sparse = {.enabled = true, .topk = 90};
      const BenchInput input = decoded(problem, {130, 64, 257}, 61);
      const Result<Comparison> all = compare_sample(input, 1000, executor_);
      ASSERT_TRUE(all.ok()) << all.status().message();
      EXPECT_TRUE(all->ok()) << to_string(*all);
      EXPECT_EQ(all->rows, 2 * 2 * 8);
      auto* out = static_cast<std::uint16_t*>(input.outputs.out.data);
      out[input.outputs.out.elements() - 100] = 0x4000;  // 2 in the last row
      EXPECT_EQ(compare_sample(input, 1000, executor_)->wrong_rows, 1);
      if (!sparse) continue;
      // A query token's indices are different as long as its request has tokens.
      const auto* indices = static_cast<const std::int32_t*>(input.inputs.indices.data);
      EXPECT_EQ(std::set<std::int32_t>(indices, indices + 90).size(), 90U);
      EXPECT_EQ(std::set<std::int32_t>(indices + 2 * 90, indices + 3 * 90).size(), 64U);
    }
  }
}

TEST_F(BenchCheck, AWrongValueIsFoundAndCounted) {
  const BenchInput input = decoded({130, 20, 257}, 64);
  auto* out = static_cast<std::uint16_t*>(input.outputs.out.data);
  // The last row, some column.
  std::uint16_t& value = out[input.outputs.out.elements() - 100];
  value = from_float(to_float(value, Dtype::kF16) + 0.5F, Dtype::kF16);
  const Result<Comparison> found = compare_sample(input, 1000, executor_);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->wrong_rows, 1);
  EXPECT_EQ(found->worst.head, 7);
  EXPECT_EQ(found->worst.token, 1);
  EXPECT_NEAR(found->rmse, 0.5 / std::sqrt(2 * 2 * 8 * 512.0), 1e-4);
  // Requests between the first and the last are not looked at.
  out[input.outputs.out.elements() / 2] = 0x7E00;
  EXPECT_EQ(compare_sample(input, 1000, executor_)->wrong_rows, 1);
}

}  // namespace
}  // namespace flashlatent::runtime
