// What the tests of contracts share: they run on every backend that is there.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flashlatent/decode.h"
#include "kernels_that_take.h"
#include "runtime/compare.h"
#include "runtime/decode_run.h"
#include "runtime/random_case.h"

namespace flashlatent {

/// CaseSpec::score_steps that are hard on a softmax whose base moves seldom: within a part it has to move
/// again and again, in even and odd blocks, for some query rows more often than for others.
struct ScoreSteps {
  static constexpr int kTokens = 48;  // of each step: no multiple of a block
  const char* name;
  std::vector<float> steps;
};
inline std::vector<ScoreSteps> hard_score_steps() {
  return {{"rising", {0, 3, 6, 9, 12, 15, 18, 21, 24, 27}},
          {"falling and rising", {10, 5, 0, 6, 12, 19, 26, 18}},
          // By 2^40, after which nothing before counts, and by 2^144, which fp32 does not have.
          {"jumping", {0, 5, 33, 30, 133, 60}}};
}

/// One token's score is some 2^10 times (base 2: 10 above) all before, and `apart` tokens later one's 4 above
/// that: if that is still weighed by the old base, rounding its probability makes up to 2.4 times the plain
/// computation's error (a model of mla_64_roles's stages of 32 tokens). The second one also lies within a
/// slack that follows the sum so far: values of the others cancel, its own do not.
inline constexpr int kLeapingTokens = 1100;
inline runtime::CaseSpec leaping_scores(int apart, KvFormat format, std::vector<int> lengths) {
  constexpr int kFirst = 16 * 64 + 5;  // early in a block
  std::vector<float> scores(kLeapingTokens);
  scores[kFirst] = 7;
  scores[kFirst + apart] = 10;
  return {.name = "leaping",
          .format = format,
          .heads = 80,
          .lengths = std::move(lengths),
          .logit_scale = 0.25F,
          .score_steps = std::move(scores),
          .step_tokens = 1};
}

/// CaseSpec::logit_scale of large scores. The rounding of one is what fp16's probabilities show from 2^12 on
/// (base 2), bf16's from 2^15 on, 16 from 2^27 on, which is 2^16 in a probability, and from 2^31 on more than
/// exp2 has room for.
inline constexpr float kHugeLogits[] = {150.0F, 3e3F, 3e4F, 1e6F, 2e7F, 4.5e7F, 1e10F, 1e20F, -1e10F};

/// Rows to compare of cases with long requests and many heads, whose oracle takes a second for a million
/// tokens of a head. The stride is odd, so that over the rows of a tile no place in it is left out.
inline constexpr runtime::RowSample kSomeRows = {.first = 0, .stride = 7};

/// The case with all its requests again and again, `times` times in all, of the same pages: tokens of many
/// requests would take long to draw and to copy.
inline void repeat_requests(runtime::RandomCase& c, int times) {
  c.problem.query.batch *= times;
  for (ConstTensorView* view : {&c.inputs.q, &c.inputs.block_table, &c.inputs.cache_seqlens,
                                &c.inputs.indices, &c.inputs.topk_length}) {
    if (!view->present()) continue;
    const auto* once = static_cast<const std::uint8_t*>(view->data);
    const std::size_t bytes = view->shape[0] * view->strides[0] * size_of(view->dtype);
    std::vector<std::uint8_t>& all = c.storage.emplace_back();
    for (int i = 0; i < times; ++i) all.insert(all.end(), once, once + bytes);
    view->data = all.data();
    view->shape[0] *= times;
  }
}

class Contracts : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    executor_.backend = GetParam();
    if (Status status = available(GetParam()); !status.ok()) GTEST_SKIP() << status.message();
  }

  bool on_gpu() const { return GetParam() == Backend::kCuda; }

  /// Does the executor's kernel, or without a name any of the backend, take the problem? One that does not as
  /// it should is a failure, so that no test passes because nothing ran. The CPU takes everything.
  bool taken(const DecodeProblem& problem) const {
    bool should = !on_gpu();
    for (const KernelInfo& kernel : kernels()) {
      const bool asked = executor_.kernel.empty() || executor_.kernel == kernel.name;
      if (kernel.backend == GetParam() && asked) should = should || should_take(kernel.name, problem);
    }
    const Status status = plan_bytes(problem, executor_).status();
    EXPECT_EQ(status.code(), should ? StatusCode::kOk : StatusCode::kUnsupported)
        << executor_.kernel << " " << to_string(problem) << ": " << status.message();
    return status.ok();
  }
  bool taken(const runtime::CaseSpec& spec) const { return taken(runtime::problem_of(spec)); }

  /// make_case(), of which the last is kept: kernels run on one case after another. It is valid until a case
  /// is made of another spec; names may differ.
  const runtime::RandomCase& case_of(runtime::CaseSpec spec, std::uint64_t seed) {
    spec.name.clear();
    if (!made_.has_value() || made_spec_ != spec || made_seed_ != seed) {
      made_ = runtime::make_case(spec, seed);
      made_spec_ = std::move(spec);
      made_seed_ = seed;
    }
    return *made_;
  }

  /// runtime::compare() with the oracle's rows of the test's last cases at hand.
  runtime::Comparison compare(const runtime::RandomCase& c, const runtime::DecodeRun& run,
                              runtime::RowSample sample = {}) {
    return runtime::compare(c.problem, c.inputs, run.out(), run.lse(), {}, {}, sample, {}, {}, &oracle_);
  }

  static runtime::DecodeRun place(const runtime::RandomCase& c, const Executor& executor) {
    Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, executor);
    if (!run.ok()) throw std::runtime_error(run.status().message());
    return std::move(*run);
  }

  /// Runs the case and compares it with the oracle.
  void expect_right(const runtime::CaseSpec& spec, std::uint64_t seed = 1) {
    expect_right(case_of(spec, seed), spec.name);
  }
  void expect_right(const runtime::RandomCase& c, const std::string& name, runtime::RowSample sample = {}) {
    runtime::DecodeRun run = place(c, executor_);
    ASSERT_TRUE(run.run().ok());
    const Status fetched = run.fetch();
    ASSERT_TRUE(fetched.ok()) << fetched.message();
    const runtime::Comparison result = compare(c, run, sample);
    EXPECT_TRUE(result.ok()) << name << " " << to_string(c.problem) << ": " << runtime::to_string(result);
  }

  /// The same with the plan of another case, of the same shapes.
  void expect_right_with_plan_of(const runtime::RandomCase& planned, const runtime::RandomCase& used,
                                 const std::string& name, runtime::RowSample sample = {}) {
    runtime::DecodeRun plan_run = place(planned, executor_);
    ASSERT_TRUE(plan_run.plan().ok());
    runtime::DecodeRun run = place(used, executor_);
    ASSERT_TRUE(flashlatent::decode(run.problem(), run.inputs(), run.outputs(), plan_run.plan_memory(),
                                    run.workspace_memory(), executor_)
                    .ok());
    ASSERT_TRUE(run.fetch().ok());
    const runtime::Comparison result = compare(used, run, sample);
    EXPECT_TRUE(result.ok()) << name << ": " << runtime::to_string(result);
  }

  /// Three runs from poisoned memory give the same bits.
  void expect_same_bits(const runtime::CaseSpec& spec) {
    runtime::DecodeRun run = place(case_of(spec, 7), executor_);
    std::vector<std::uint8_t> out, lse;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(run.poison().ok());
      ASSERT_TRUE(run.run().ok());
      ASSERT_TRUE(run.fetch().ok());
      if (i > 0) {
        EXPECT_EQ(run.out_bytes(), out);
        EXPECT_EQ(run.lse_bytes(), lse);
      }
      out = run.out_bytes();
      lse = run.lse_bytes();
    }
  }

  /// Request by request the case (with batch_invariant) gives the bits that the whole batch gives.
  void expect_batch_invariant(const runtime::CaseSpec& spec) {
    const runtime::RandomCase& batch = case_of(spec, 8);
    expect_right(batch, spec.name);
    runtime::DecodeRun together = place(batch, executor_);
    ASSERT_TRUE(together.run().ok());
    ASSERT_TRUE(together.fetch().ok());
    for (int request = 0; request < batch.problem.query.batch; ++request) {
      runtime::RandomCase alone = batch;
      alone.problem.query.batch = 1;
      for (ConstTensorView* view : {&alone.inputs.q, &alone.inputs.block_table, &alone.inputs.cache_seqlens,
                                    &alone.inputs.indices, &alone.inputs.topk_length}) {
        if (!view->present()) continue;
        view->data = static_cast<const char*>(view->data) + request * view->strides[0] * size_of(view->dtype);
        view->shape[0] = 1;
      }
      runtime::DecodeRun run = place(alone, executor_);
      ASSERT_TRUE(run.run().ok());
      ASSERT_TRUE(run.fetch().ok());
      const auto begin = together.out_bytes().begin() + request * run.out_bytes().size();
      EXPECT_TRUE(std::equal(run.out_bytes().begin(), run.out_bytes().end(), begin)) << "request " << request;
    }
  }

  Executor executor_;
  runtime::OracleMemory oracle_;

 private:
  std::optional<runtime::RandomCase> made_;
  runtime::CaseSpec made_spec_;
  std::uint64_t made_seed_ = 0;
};

#if FLASHLATENT_WITH_CUDA
inline const auto kBackends = ::testing::Values(Backend::kCpu, Backend::kCuda);
#else
inline const auto kBackends = ::testing::Values(Backend::kCpu);
#endif
inline std::string backend_name(const ::testing::TestParamInfo<Backend>& info) {
  return to_string(info.param);
}

}  // namespace flashlatent
