// What Hopper's tensor cores make of e4m3 products, on the CPU: what they lose, and what mla_64_e4m3 makes of
// it within the tolerance.
#include "cpu/e4m3_tensor_cores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "contracts.h"
#include "core/element.h"
#include "core/formats/e4m3_latent.h"
#include "runtime/compare.h"
#include "runtime/random_case.h"

namespace flashlatent::cpu {
namespace {

/// The sum of 32 products with 1.
float sum_of(std::initializer_list<float> products) {
  float a[E4m3Sum::kAtOnce] = {}, ones[E4m3Sum::kAtOnce];
  std::copy(products.begin(), products.end(), a);
  std::fill_n(ones, E4m3Sum::kAtOnce, 1.0F);
  E4m3Sum sum;
  sum.add(a, ones);
  return sum.value();
}

TEST(E4m3TensorCores, SumsKeep13BitsBehindTheLargestNumbersPoint) {
  EXPECT_EQ(sum_of({1, 0x1p-13F}), 1 + 0x1p-13F);
  EXPECT_EQ(sum_of({1, 0x1p-14F}), 1);
  EXPECT_EQ(sum_of({1, 0x1p-14F, 0x1p-14F}), 1);
  EXPECT_EQ(sum_of({1, -0x1p-14F}), 1);
  EXPECT_EQ(sum_of({0x1p-14F, 0x1p-14F}), 0x1p-13F);
}

/// How many of a case's rows are past the tolerance.
std::int64_t wrong_rows(runtime::CaseSpec spec, int chains) {
  const runtime::RandomCase c = runtime::make_case(spec, 1);
  const DecodeProblem& problem = c.problem;
  const auto& [query, cache, sparse, options] = problem;
  std::vector<std::uint16_t> out;
  std::vector<float> lse;
  for (int request = 0; request < query.batch; ++request) {
    for (int head = 0; head < query.heads; ++head) {
      const E4m3Row row = e4m3_row(problem, c.inputs, request, 0, head, chains);
      for (float x : row.out) out.push_back(float_to_bf16(x));
      lse.push_back(row.lse);
    }
  }
  return runtime::compare(problem, c.inputs, {out.data(), Dtype::kBF16, {query.batch, 1, query.heads, 512}},
                          {lse.data(), Dtype::kF32, {query.batch, query.heads, 1}})
      .wrong_rows;
}

/// Their products have one sign: one sum loses some thousandths of them.
TEST(E4m3TensorCores, RisingAndFallingScores) {
  for (const auto& [name, steps] : hard_score_steps()) {
    for (bool e4m3_query : {false, true}) {
      runtime::CaseSpec spec{.format = KvFormat::kE4m3, .scales = 1, .heads = 12, .lengths = {900, 300}};
      spec.score_steps = steps;
      spec.step_tokens = ScoreSteps::kTokens;
      spec.products = Products::kFp8;
      spec.e4m3_query = e4m3_query;
      spec.query_scales = e4m3_query ? 1 : 0;
      if (e4m3_query) {
        EXPECT_GT(wrong_rows(spec, 1), 0) << name;
      }
      for (int chains : {e4m3_latent::kChainsOfFewRows, e4m3_latent::kChainsOfTiles}) {
        EXPECT_EQ(wrong_rows(spec, chains), 0) << name << ", " << chains << " chains";
      }
    }
  }
}

TEST(E4m3TensorCores, SinksWithoutRopeAndAScaleAHead) {
  runtime::CaseSpec spec{
      .format = KvFormat::kE4m3, .scales = 1, .heads = 12, .lengths = {1, 64, 0, 130, 1000}};
  spec.sink = true;
  spec.e4m3_query = true;
  spec.query_scales = spec.heads;
  for (int qk_dim : {576, 512}) {
    spec.qk_dim = qk_dim;
    EXPECT_EQ(wrong_rows(spec, e4m3_latent::kChainsOfTiles), 0) << qk_dim;
  }
}

}  // namespace
}  // namespace flashlatent::cpu
