// Plan::with_check_inputs(), on every backend that is there. checked_process_test.cc has the environment's.
#include "contracts.h"
#include "core/environment.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

class CheckedCalls : public Contracts {
 protected:
  static Status decode(const Plan& plan, DecodeRun& run) {
    return plan.decode(run.inputs(), run.outputs(), run.plan_memory(), run.workspace_memory());
  }
  static std::vector<std::uint8_t> results(DecodeRun& run) {
    EXPECT_TRUE(run.fetch().ok());
    std::vector<std::uint8_t> all = run.out_bytes();
    all.insert(all.end(), run.lse_bytes().begin(), run.lse_bytes().end());
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, CheckedCalls, kBackends, backend_name);

RandomCase with_length(int length) {
  RandomCase c = runtime::make_case(CaseSpec{.lengths = {5, 100, 30}}, 2);
  static_cast<std::int32_t*>(const_cast<void*>(c.inputs.cache_seqlens.data))[1] = length;
  return c;
}

TEST_P(CheckedCalls, AreRefusedBeforeAnythingIsWritten) {
  DecodeRun run = place(with_length(100000), executor_);
  ASSERT_TRUE(run.plan().ok());
  const std::vector<std::uint8_t> poison = results(run);
  const Plan checked = run.handle().with_check_inputs();
  for (const Plan& plan : {checked, checked.with_stream(executor_.stream)}) {
    EXPECT_TRUE(plan.checks_inputs());
    const Status status = decode(plan, run);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().find("cache_seqlens[1] is 100000; request 1 may have 0 to "), 0U)
        << status.message();
    EXPECT_EQ(results(run), poison);
  }
  for (const Plan& plan : {run.handle(), checked.with_check_inputs(false)}) {
    EXPECT_FALSE(plan.checks_inputs());
    EXPECT_TRUE(decode(plan, run).ok());  // the length is clamped
    EXPECT_NE(results(run), poison);
  }
}

TEST_P(CheckedCalls, GiveTheSameBits) {
  for (const CaseSpec& spec : {CaseSpec{.lengths = {0, 1, 64, 500}},
                               CaseSpec{.lengths = {7, 100, 0}, .ragged_tokens = {1, 3, 0}, .causal = true},
                               CaseSpec{.heads = 16, .lengths = {300}, .sparse = true, .topk = 40}}) {
    DecodeRun run = place(runtime::make_case(spec, 3), executor_);
    ASSERT_TRUE(run.run().ok());
    const std::vector<std::uint8_t> expected = results(run);
    ASSERT_TRUE(run.poison().ok());
    const Status status = decode(run.handle().with_check_inputs(), run);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(results(run), expected);
  }
}

TEST(Environment, ChecksInputsBy0And1) {
  for (const char* off : {"", "0"}) EXPECT_FALSE(*environment::checks_inputs(off)) << off;
  EXPECT_TRUE(*environment::checks_inputs("1"));
  for (const char* wrong : {"yes", "2", " 1", "true"}) {
    const Status status = environment::checks_inputs(wrong).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              std::string("FLASHLATENT_CHECK_INPUTS is '") + wrong + "'; 0 and 1 are accepted");
  }
}

}  // namespace
}  // namespace flashlatent
