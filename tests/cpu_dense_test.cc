// The CPU kernel's paths: numbers of rows and dimensions of no round size, on every SIMD target there is.
#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"
#include "flashlatent/decode.h"
#include "only_target.h"
#include "runtime/compare.h"
#include "runtime/decode_run.h"
#include "runtime/random_case.h"

namespace flashlatent {
namespace {

void expect_right(const runtime::CaseSpec& spec) {
  const runtime::RandomCase c = runtime::make_case(spec, 1);
  Executor executor;
  executor.backend = Backend::kCpu;
  Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, executor);
  ASSERT_TRUE(run.ok()) << run.status().message();
  ASSERT_TRUE(run->run().ok());
  ASSERT_TRUE(run->fetch().ok());
  const runtime::Comparison result = runtime::compare(c.problem, c.inputs, run->out(), run->lse());
  EXPECT_TRUE(result.ok()) << to_string(c.problem) << ": " << runtime::to_string(result);
}

TEST(CpuDense, OddRowsAndDimensionsOnEveryTarget) {
  for (const std::int64_t target : simd_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const OnlyTarget only(target);
    ASSERT_STREQ(cpu::simd_target(), hwy::TargetName(target));
    for (int heads : {3, 17}) {
      expect_right({.name = "fp8", .format = KvFormat::kFp8_656, .heads = heads, .lengths = {3, 130}});
    }
    for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
      for (int heads : {1, 2, 3, 7, 17}) {
        for (auto [qk_dim, v_dim] : {std::pair{576, 512}, {100, 100}, {72, 40}, {33, 1}, {5, 5}}) {
          // Two query tokens: one row more than the other sees.
          expect_right({.name = "odd",
                        .dtype = dtype,
                        .query_tokens = 2,
                        .heads = heads,
                        .qk_dim = qk_dim,
                        .v_dim = v_dim,
                        .lengths = {3, 65, 130},
                        .causal = true});
          expect_right({.name = "odd",
                        .dtype = dtype,
                        .heads = heads,
                        .qk_dim = qk_dim,
                        .v_dim = v_dim,
                        .lengths = {1, 77}});
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashlatent
