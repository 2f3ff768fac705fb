// The combine step by the CTAs that decode: right also where some of them begin late, because something else
// runs on the device, and whatever the workspace held before.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <random>

#include "cuda/parts/merge_step.cuh"
#include "flashlatent/backend.h"
#include "plan/schedule.h"
#include "runtime/compare.h"
#include "runtime/decode_run.h"
#include "runtime/random_case.h"

namespace flashlatent {
namespace {

/// Keeps a multiprocessor a CTA, whose shared memory leaves no room for another, for so long.
__global__ void hold(std::uint64_t nanoseconds) {
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}
constexpr int kHeldBytes = 200 * 1024;

class MergeStepTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!available(Backend::kCuda).ok()) GTEST_SKIP() << "no GPU";
    executor_.backend = Backend::kCuda;
    ASSERT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    executor_.stream = stream_;
    ASSERT_EQ(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, kHeldBytes),
              cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (other_ != nullptr) cudaStreamDestroy(other_);
  }

  /// Alone, after garbage in the workspace, and again; then while multiprocessors are held.
  void expect_right(const runtime::CaseSpec& spec, const char* kernel) {
    SCOPED_TRACE(spec.name + " by " + kernel);
    executor_.kernel = kernel;
    const runtime::RandomCase c = runtime::make_case(spec, 5);
    Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, executor_);
    ASSERT_TRUE(run.ok()) << run.status().message();
    ASSERT_TRUE(run->run(2).ok());
    ASSERT_TRUE(run->fetch().ok());
    const auto result = runtime::compare(c.problem, c.inputs, run->out(), run->lse());
    EXPECT_TRUE(result.ok()) << runtime::to_string(result);
    expect_merged(*run);
    const std::vector<std::uint8_t> out = run->out_bytes(), lse = run->lse_bytes();
    for (int held : {1, 40, 100, 131}) {
      ASSERT_TRUE(run->poison().ok());
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      hold<<<held, 32, kHeldBytes, other_>>>(300000);
      ASSERT_TRUE(run->run(3).ok());
      ASSERT_TRUE(run->fetch().ok());
      EXPECT_TRUE(run->out_bytes() == out) << held << " held";
      EXPECT_TRUE(run->lse_bytes() == lse) << held << " held";
      expect_merged(*run);
      ASSERT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
    }
  }

  /// Something was split, and the kernel has merged it: the state, poisoned before, is as it leaves it.
  void expect_merged(const runtime::DecodeRun& run) {
    schedule::Header header;
    parts::MergeState state;
    ASSERT_TRUE(runtime::copy_to_host(&header, run.plan_memory().data, sizeof(header), executor_).ok());
    ASSERT_TRUE(runtime::copy_to_host(&state, run.workspace_memory().data, sizeof(state), executor_).ok());
    EXPECT_GT(header.merges, 0);
    EXPECT_EQ(state.begun, parts::Counts<24>::kNone);
    EXPECT_EQ(state.done, parts::Counts<24>::kNone);
  }

  Executor executor_;
  cudaStream_t stream_ = nullptr, other_ = nullptr;
};

std::vector<int> varied() {
  std::mt19937 random(7);
  std::vector<int> lengths(140);
  for (int& length : lengths) length = static_cast<int>(random() % 1200);
  return lengths;
}
std::vector<int> one_long() {
  std::vector<int> lengths(140, 64);
  lengths[70] = 30000;
  return lengths;
}

TEST_F(MergeStepTest, OfAPlainCache) {
  for (const auto& lengths : {varied(), one_long()}) {
    expect_right({.name = "plain", .heads = 8, .lengths = lengths}, "seesaw");
  }
}
TEST_F(MergeStepTest, OfAnFp8Cache) {
  for (const auto& lengths : {varied(), one_long()}) {
    const runtime::CaseSpec spec{
        .name = "fp8_656", .format = KvFormat::kFp8_656, .heads = 8, .lengths = lengths};
    expect_right(spec, "direct");
    expect_right(spec, "seesaw");
  }
}
TEST_F(MergeStepTest, OfTwoRowTiles) {
  expect_right(
      {.name = "fp8_656", .format = KvFormat::kFp8_656, .heads = 66, .lengths = varied(), .sink = true},
      "seesaw");
  expect_right({.name = "plain", .heads = 66, .lengths = one_long(), .sink = true}, "seesaw");
}

}  // namespace
}  // namespace flashlatent
