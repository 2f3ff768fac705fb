// Two kernels for one problem, of which the plan chooses one on the device. What is chosen is asked of no
// device; that calls are right whatever is chosen runs on each backend (the CPU has one kernel).
#include "choose/near_kernel.h"

#include "cached.h"
#include "contracts.h"
#include "cost/device.h"
#include "cuda/host/geometry.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::RandomCase;

constexpr int kReach = 131072;

Executor on_cuda() {
  Executor executor;
  executor.backend = Backend::kCuda;
  return executor;
}

schedule::Workers h200() {
  const cost::Gpu* gpu = cost::find_gpu("H200");
  return cost::workers_of(*gpu, gpu->multiprocessors);
}

struct Found {
  Candidate far;
  std::optional<NearCandidate> near;
};
Found find(const DecodeProblem& problem) {
  const Result<std::vector<Candidate>> list = candidates(problem, on_cuda(), h200());
  if (!list.ok()) throw std::runtime_error(list.status().message());
  const Candidate* far = cheapest(*list);
  const auto near = near_candidate(problem, on_cuda(), h200(), *far);
  if (!near.ok()) throw std::runtime_error(near.status().message());
  return {*far, *near};
}

TEST(NearKernel, ServesFewRequestsUnderALongTable) {
  for (const int heads : {16, 64, 128}) {
    const Found found = find(problem_of({.name = "bf16"}, 1, kReach, heads));
    if (heads == 16) {  // teams of 8 for any length, if with more parts for long ones
      EXPECT_EQ(found.far.geometry.team, 8);
      continue;
    }
    ASSERT_TRUE(found.near.has_value()) << heads;
    EXPECT_GE(found.near->most_tokens, 1024) << heads;
    EXPECT_LT(found.near->most_tokens, kReach) << heads;
    EXPECT_GT(found.near->candidate.geometry.team, 1) << heads;
  }
  EXPECT_FALSE(find(problem_of({.name = "bf16"}, 128, kReach, 128)).near.has_value());
}

// Callers bring memory for the largest batch: what lies in it must not depend on the batch.
TEST(NearKernel, LeavesAndFitsIntoTheSizesOfOneKernel) {
  int found = 0;
  for (const int heads : {8, 12, 16, 20, 32, 48, 64, 96, 128}) {
    for (const int query_tokens : {1, 2, 4}) {
      for (const int reach : {16384, kReach, 1 << 20}) {
        for (int batch = 1; batch <= 256; batch += 1 + batch / 3) {
          DecodeProblem problem = problem_of({.name = "bf16"}, batch, reach, heads);
          problem.query.tokens = query_tokens;
          const Result<std::vector<Candidate>> list = candidates(problem, on_cuda(), h200());
          ASSERT_TRUE(list.ok()) << list.status().message();
          const Candidate& far = *cheapest(*list);
          const auto near = near_candidate(problem, on_cuda(), h200(), far);
          ASSERT_TRUE(near.ok()) << near.status().message();
          if (!near->has_value()) continue;
          ++found;
          const Candidate& candidate = (*near)->candidate;
          EXPECT_TRUE(far.kernel->leaves && candidate.kernel->leaves);
          EXPECT_LT((*near)->most_tokens, cuda::reach_of(problem));
          EXPECT_EQ(candidate.geometry.max_tokens, cuda::reach_of(problem));
          const Sizes all = sizes_of(problem, *list, far), own = sizes_of(problem, {candidate}, candidate);
          EXPECT_LE(own.plan, all.plan) << to_string(problem) << candidate.kernel->name;
          EXPECT_LE(own.workspace, all.workspace) << to_string(problem) << candidate.kernel->name;
        }
      }
    }
  }
  EXPECT_GT(found, 30);
}

TEST(NearKernel, IsForLessThanTheTypicalTokens) {
  DecodeProblem problem = problem_of({.name = "bf16"}, 1, kReach, 64);
  problem.options.typical_tokens = 8192;
  const Found found = find(problem);
  ASSERT_TRUE(found.near.has_value());
  EXPECT_LT(found.near->most_tokens, 8192);
  problem.options.typical_tokens = 256;
  EXPECT_FALSE(find(problem).near.has_value());
}

TEST(NearKernel, IsNotThereWhereSomethingElseSaysWhichKernel) {
  const DecodeProblem problem = problem_of({.name = "bf16"}, 1, kReach, 64);
  EXPECT_TRUE(lengths_may_decide(problem, on_cuda()));
  EXPECT_FALSE(lengths_may_decide(problem, Executor{}));
  Executor named = on_cuda();
  named.kernel = "mla_64_pingpong";
  EXPECT_FALSE(lengths_may_decide(problem, named));
  DecodeProblem other = problem;
  other.options.batch_invariant = true;
  EXPECT_FALSE(lengths_may_decide(other, on_cuda()));
  EXPECT_FALSE(lengths_may_decide(problem_of({.name = "bf16"}, 1, 8192, 64), on_cuda()));
  EXPECT_FALSE(lengths_may_decide(problem_of({.name = "sparse", .sparse = true}, 1, kReach, 64), on_cuda()));
  EXPECT_FALSE(lengths_may_decide(
      problem_of({.name = "fp8_656", .format = KvFormat::kFp8_656}, 1, kReach, 64), on_cuda()));
}

class NearKernelCalls : public Contracts {};

// Whichever kernel the plan's lengths chose computes calls of all lengths.
TEST_P(NearKernelCalls, AreRightWithPlansOfAnyLengths) {
  int with_two = 0;  // kernels
  for (const auto& [heads, query_tokens, batch] :
       {std::array{16, 1, 8}, {64, 1, 1}, {128, 1, 1}, {64, 1, 4}, {128, 2, 4}, {32, 1, 2}, {64, 1, 24}}) {
    if (!on_gpu() && heads > 16) break;  // the CPU has one kernel, and takes long
    std::vector<int> lengths(batch, 300);
    lengths.back() = 17000;
    CaseSpec spec = {.name = "far", .query_tokens = query_tokens, .heads = heads, .lengths = lengths};
    const RandomCase far = runtime::make_case(spec, 5);
    const Plan plan = place(far, executor_).handle();
    EXPECT_LT(plan.near_tokens(), 17000);
    with_two += plan.near_kernel() != nullptr;
    RandomCase near = far;
    std::vector<std::int32_t> few(batch, 200);
    few.front() = 0;
    few.back() = 190;
    near.inputs.cache_seqlens.data = few.data();
    expect_right(far, "long", kSomeRows);
    expect_right(near, "short");
    expect_right_with_plan_of(far, near, "short by a plan of long ones");
    expect_right_with_plan_of(near, far, "long by a plan of short ones", kSomeRows);
  }
  EXPECT_GE(with_two, on_gpu() ? 3 : 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, NearKernelCalls, kBackends, backend_name);

}  // namespace
}  // namespace flashlatent
