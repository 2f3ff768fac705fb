// The handle that keeps a choice: what it knows, and that its calls are those of the functions without one.
#include "flashlatent/plan.h"

#include <cstring>
#include <thread>

#include "contracts.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

class PlanHandle : public Contracts {};

TEST_P(PlanHandle, KnowsItsKernelAndSizes) {
  for (const CaseSpec& spec :
       {CaseSpec{.name = "latent", .lengths = {300, 5}},
        CaseSpec{.name = "fp8", .format = KvFormat::kFp8_656, .heads = 64, .lengths = {300, 5}}}) {
    const DecodeProblem problem = runtime::problem_of(spec);
    const Result<Plan> plan = Plan::make(problem, executor_);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->problem(), problem);
    EXPECT_EQ(plan->kernel(), *picked_kernel(problem, executor_));
    EXPECT_EQ(plan->plan_bytes(), *plan_bytes(problem, executor_));
    EXPECT_EQ(plan->workspace_bytes(), *workspace_bytes(problem, executor_));
    EXPECT_EQ(plan->executor().backend, GetParam());
    const Plan other = plan->with_stream(reinterpret_cast<void*>(8));
    EXPECT_EQ(other.stream(), reinterpret_cast<void*>(8));
    EXPECT_EQ(plan->stream(), executor_.stream);
    EXPECT_EQ(&other.problem(), &plan->problem());  // nothing is chosen again
  }
}

TEST_P(PlanHandle, MakeRefusesWhatNoKernelTakes) {
  DecodeProblem problem = runtime::problem_of({.name = "latent"});
  problem.options.softmax_scale = DecodeProblem().options.softmax_scale;
  const Status unset = Plan::make(problem, executor_).status();
  EXPECT_EQ(unset.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unset.message().find("softmax_scale is nan, which is not set"), std::string::npos)
      << unset.message();
  Executor unknown = executor_;
  unknown.kernel = "none";
  EXPECT_EQ(Plan::make(runtime::problem_of({.name = "latent"}), unknown).status().code(),
            StatusCode::kUnsupported);
}

// The functions without a handle write the same bits.
TEST_P(PlanHandle, GivesTheBitsOfTheFreeFunctions) {
  const RandomCase c = runtime::make_case({.name = "latent", .lengths = {700, 3, 0, 250}}, 3);
  DecodeRun by_handle = place(c, executor_), by_functions = place(c, executor_);
  ASSERT_TRUE(by_handle.run().ok());
  ASSERT_TRUE(
      flashlatent::plan(c.problem, by_functions.inputs().cache_seqlens, by_functions.plan_memory(), executor_)
          .ok());
  ASSERT_TRUE(flashlatent::decode(c.problem, by_functions.inputs(), by_functions.outputs(),
                                  by_functions.plan_memory(), by_functions.workspace_memory(), executor_)
                  .ok());
  ASSERT_TRUE(by_handle.fetch().ok());
  ASSERT_TRUE(by_functions.fetch().ok());
  EXPECT_EQ(by_handle.out_bytes(), by_functions.out_bytes());
  EXPECT_EQ(by_handle.lse_bytes(), by_functions.lse_bytes());
}

TEST_P(PlanHandle, ServesThreadsAtOnce) {
  const RandomCase c = runtime::make_case({.name = "latent", .lengths = {700, 3, 0, 250}}, 3);
  executor_.threads = on_gpu() ? 0 : 2;
  std::vector<DecodeRun> runs;
  for (int i = 0; i < 4; ++i) runs.push_back(place(c, executor_));
  const Plan plan = runs.front().handle();
  std::vector<Status> statuses(runs.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    threads.emplace_back([&, i] {
      DecodeRun& run = runs[i];
      for (int call = 0; call < 5 && statuses[i].ok(); ++call) {
        statuses[i] = plan.schedule(run.inputs().cache_seqlens, run.plan_memory());
        if (!statuses[i].ok()) return;
        statuses[i] = plan.decode(run.inputs(), run.outputs(), run.plan_memory(), run.workspace_memory());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ASSERT_TRUE(statuses[i].ok()) << statuses[i].message();
    ASSERT_TRUE(runs[i].fetch().ok());
    EXPECT_EQ(runs[i].out_bytes(), runs[0].out_bytes());
  }
}

// How many calls share a plan decides how it is cut, and nothing else: what one value wrote the other reads.
TEST_P(PlanHandle, CallsPerPlanChangeNeitherKernelNorSizes) {
  std::vector<int> lengths;
  for (int i = 0; i < 70; ++i) lengths.push_back(1 + i * 37 % 700);
  RandomCase many = runtime::make_case({.name = "many calls", .heads = 16, .lengths = lengths}, 3);
  RandomCase one = runtime::make_case({.name = "one call", .heads = 16, .lengths = lengths}, 3);
  one.problem.options.calls_per_plan = 1;
  EXPECT_NE(one.problem, many.problem);
  EXPECT_NE(to_string(one.problem).find(" calls_per_plan=1"), std::string::npos);
  DecodeRun by_one = place(one, executor_), by_many = place(many, executor_);
  EXPECT_STREQ(by_one.handle().kernel(), by_many.handle().kernel());
  EXPECT_EQ(by_one.handle().plan_bytes(), by_many.handle().plan_bytes());
  EXPECT_EQ(by_one.handle().workspace_bytes(), by_many.handle().workspace_bytes());
  ASSERT_TRUE(by_one.run().ok());
  const Status other = by_many.handle().decode(by_many.inputs(), by_many.outputs(), by_one.plan_memory(),
                                               by_many.workspace_memory());
  ASSERT_TRUE(other.ok()) << other.message();
  ASSERT_TRUE(by_one.fetch().ok() && by_many.fetch().ok());
  EXPECT_EQ(by_one.out_bytes(), by_many.out_bytes());
  EXPECT_EQ(by_one.lse_bytes(), by_many.lse_bytes());

  one.problem.options.calls_per_plan = -1;
  const Status refused = Plan::make(one.problem, executor_).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message().find("calls_per_plan is -1"), 0U) << refused.message();
}

// The plan that schedule() wrote, and the one that the host makes of the same lengths.
TEST_P(PlanHandle, DescribesWhatItSchedules) {
  const RandomCase c = runtime::make_case({.name = "latent", .lengths = {700, 3, 0, 250}}, 3);
  DecodeRun run = place(c, executor_);
  const Plan& plan = run.handle();
  ASSERT_TRUE(run.plan().ok());
  Result<runtime::Buffer> copy = runtime::Buffer::allocate(Executor{}, plan.plan_bytes());
  ASSERT_TRUE(copy.ok() && runtime::synchronize(executor_).ok());
  ASSERT_TRUE(runtime::copy_to_host(copy->data(), run.plan_memory().data, plan.plan_bytes(), executor_).ok());
  const Result<PlanDescription> written = plan.describe(c.inputs.cache_seqlens, copy->memory());
  const Result<PlanDescription> expected = plan.describe(c.inputs.cache_seqlens);
  ASSERT_TRUE(written.ok()) << written.status().message();
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  EXPECT_EQ(to_string(*written), to_string(*expected));
  EXPECT_EQ(written->kernel, plan.kernel());
  const ConstTensorView two(c.inputs.cache_seqlens.data, Dtype::kI32, {2});
  EXPECT_EQ(plan.describe(two).status().code(), StatusCode::kInvalidArgument);
}

// Presence is said in the problem; a tensor that says otherwise is refused by name, and nothing is written.
TEST_P(PlanHandle, RefusesTensorsThatContradictTheProblem) {
  const RandomCase with = runtime::make_case({.name = "sink", .sink = true}, 3);
  const RandomCase without = runtime::make_case({.name = "no sink"}, 3);
  DecodeRun a = place(with, executor_), b = place(without, executor_);
  ASSERT_TRUE(a.plan().ok() && b.plan().ok());
  const Status missing = a.handle().decode(b.inputs(), a.outputs(), a.plan_memory(), a.workspace_memory());
  const Status given = b.handle().decode(a.inputs(), b.outputs(), b.plan_memory(), b.workspace_memory());
  EXPECT_EQ(missing.message().find("attn_sink is missing"), 0U) << missing.message();
  EXPECT_EQ(given.message().find("attn_sink is given, but"), 0U) << given.message();
  DecodeInputs slopes = b.inputs();
  slopes.alibi_slopes = a.inputs().attn_sink;
  const Status latent = b.handle().decode(slopes, b.outputs(), b.plan_memory(), b.workspace_memory());
  EXPECT_EQ(latent.message().find("alibi_slopes is given, but"), 0U) << latent.message();
  // An inferred problem takes presence from the tensors, and no option against them.
  DecodeProblem::Options options = with.problem.options;
  EXPECT_TRUE(infer_problem(with.inputs, 512, without.problem.options)->options.attn_sink);
  EXPECT_EQ(infer_problem(without.inputs, 512, options).status().message().find("attn_sink is missing"), 0U);
  options = without.problem.options;
  options.separate.alibi = true;
  EXPECT_EQ(infer_problem(without.inputs, 512, options).status().message().find("alibi_slopes is missing"),
            0U);
}

INSTANTIATE_TEST_SUITE_P(Backends, PlanHandle, kBackends, backend_name);

}  // namespace
}  // namespace flashlatent
