// A process with FLASHLATENT_CHECK_INPUTS=1, which the library reads once: every call is checked.
#include <cstdlib>

#include "contracts.h"
#include "prefill_rows.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

// Before main(), and so before any call.
[[maybe_unused]] const int kSet = setenv("FLASHLATENT_CHECK_INPUTS", "1", 1);

class CheckedProcess : public Contracts {};

INSTANTIATE_TEST_SUITE_P(Backends, CheckedProcess, kBackends, backend_name);

std::int32_t* integers(const ConstTensorView& view) {
  return static_cast<std::int32_t*>(const_cast<void*>(view.data));
}

TEST_P(CheckedProcess, PlansAndPlainFunctionsAreRefused) {
  RandomCase c = runtime::make_case(CaseSpec{.lengths = {5, 100, 30}}, 2);
  integers(c.inputs.cache_seqlens)[2] = -1;
  DecodeRun run = place(c, executor_);
  ASSERT_TRUE(run.plan().ok());
  ASSERT_FALSE(run.handle().checks_inputs());
  for (const Status& status : {run.decode(), decode(run.problem(), run.inputs(), run.outputs(),
                                                    run.plan_memory(), run.workspace_memory(), executor_)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().find("cache_seqlens[2] is -1; request 2 may have 0 to "), 0U)
        << status.message();
  }
}

TEST_P(CheckedProcess, RightCallsAreRight) {
  expect_right({.name = "right", .lengths = {0, 1, 64, 500}});
}

TEST_P(CheckedProcess, SparsePrefillIsRefused) {
  Rows rows({.lengths = true});
  rows.lengths()[2] = 78;
  Result<PrefillRun> run = PrefillRun::create(rows.inputs, rows.options, executor_);
  ASSERT_TRUE(run.ok()) << run.status().message();
  const Status status = run->run();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().find("topk_length[2] is 78; request 2"), 0U) << status.message();
}

}  // namespace
}  // namespace flashlatent
