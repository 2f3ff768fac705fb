// What CTAs that decode merge, by the combine step in their kernel or by teams: right also where some of them
// begin late, because something else runs on the device, and whatever the workspace held before.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/merge/team_merge.cuh"
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

/// The same until the host has said so, or for two seconds, of which there is a note.
__global__ void hold_until(const volatile int* over, int* in_vain) {
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now - begin > 2000000000) *in_vain = 1;
  } while (*over == 0 && *in_vain == 0);
}

class MergeStepTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!available(Backend::kCuda).ok()) GTEST_SKIP() << "no GPU";
    executor_.backend = Backend::kCuda;
    ASSERT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    executor_.stream = stream_;
    for (const void* kernel :
         {reinterpret_cast<const void*>(hold), reinterpret_cast<const void*>(hold_until)}) {
      ASSERT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kHeldBytes),
                cudaSuccess);
    }
    ASSERT_EQ(cudaMallocHost(&notes_, 2 * sizeof(int)), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (other_ != nullptr) cudaStreamDestroy(other_);
    cudaFreeHost(notes_);
  }

  void expect_two_calls_right(const runtime::RandomCase& c, runtime::DecodeRun& run) {
    ASSERT_TRUE(run.run(2).ok());
    ASSERT_TRUE(run.fetch().ok());
    // Some rows of many heads: the oracle takes a second for a million tokens of a head.
    const runtime::RowSample sample{.first = 0, .stride = c.problem.query.heads > 16 ? 7 : 1};
    const auto result =
        runtime::compare(c.problem, c.inputs, run.out(), run.lse(), {}, {}, sample, {}, {}, &oracle_);
    EXPECT_TRUE(result.ok()) << runtime::to_string(result);
  }

  /// Alone, after garbage in the workspace, and again; then while multiprocessors are held.
  void expect_right(const runtime::CaseSpec& spec, const char* kernel) {
    SCOPED_TRACE(spec.name + " by " + kernel);
    executor_.kernel = kernel;
    const runtime::RandomCase c = runtime::make_case(spec, 5);
    Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, executor_);
    ASSERT_TRUE(run.ok()) << run.status().message();
    expect_two_calls_right(c, *run);
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
    sm90::MergeState state;
    ASSERT_TRUE(runtime::copy_to_host(&header, run.plan_memory().data, sizeof(header), executor_).ok());
    ASSERT_TRUE(runtime::copy_to_host(&state, run.workspace_memory().data, sizeof(state), executor_).ok());
    EXPECT_GT(header.merges, 0);
    EXPECT_EQ(state.begun, sm90::Counts<24>::kNone);
    EXPECT_EQ(state.done, sm90::Counts<24>::kNone);
  }

  /// By teams that share requests, while so many multiprocessors are held until they are done: those that run
  /// must not wait for those that cannot begin. Then two such calls at once.
  /// So few are held that a team of `team` has room in any GPC.
  void expect_teams_right(const runtime::CaseSpec& spec, const std::string& kernel, int team) {
    expect_teams_right(runtime::make_case(spec, 5), spec.name, kernel, team);
  }
  void expect_teams_right(const runtime::RandomCase& c, const std::string& name, const std::string& kernel,
                          int team) {
    SCOPED_TRACE(name + " by " + kernel);
    executor_.kernel = kernel;
    Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, executor_);
    ASSERT_TRUE(run.ok()) << run.status().message();
    expect_two_calls_right(c, *run);
    const std::vector<std::uint8_t> out = run->out_bytes(), lse = run->lse_bytes();
    for (int held : team == 4 ? std::vector{40, 80} : team == 8 ? std::vector{8, 40} : std::vector{6}) {
      ASSERT_TRUE(run->poison().ok());
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      notes_[0] = notes_[1] = 0;
      hold_until<<<held, 32, kHeldBytes, other_>>>(notes_, notes_ + 1);
      ASSERT_TRUE(run->run(3).ok());
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      EXPECT_EQ(notes_[1], 0) << held << " held";
      notes_[0] = 1;
      ASSERT_TRUE(run->fetch().ok());
      EXPECT_TRUE(run->out_bytes() == out) << held << " held";
      EXPECT_TRUE(run->lse_bytes() == lse) << held << " held";
      ASSERT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
    }
    Executor other = executor_;
    other.stream = other_;
    Result<runtime::DecodeRun> beside = runtime::DecodeRun::create(c.problem, c.inputs, other);
    ASSERT_TRUE(beside.ok()) << beside.status().message();
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(run->run(1).ok());
      ASSERT_TRUE(beside->run(1).ok());
    }
    for (runtime::DecodeRun* each : {&*run, &*beside}) {
      ASSERT_TRUE(each->fetch().ok());
      EXPECT_TRUE(each->out_bytes() == out);
      EXPECT_TRUE(each->lse_bytes() == lse);
    }
  }

  /// Where the numbers of teams' merges are in the workspace.
  std::map<std::size_t, sm90::UnitMerges> merges_of(const runtime::DecodeRun& run) {
    const Memory workspace = run.workspace_memory();
    std::vector<sm90::UnitMerges> words(workspace.bytes / sizeof(sm90::UnitMerges));
    EXPECT_TRUE(
        runtime::copy_to_host(words.data(), workspace.data, words.size() * sizeof(words[0]), executor_).ok());
    std::map<std::size_t, sm90::UnitMerges> found;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i].is_begun()) found[i * sizeof(words[0])] = words[i];
    }
    return found;
  }

  /// No number of a merge comes twice, though somebody else writes the same where they are counted.
  void expect_other_numbers(const char* kernel) {
    SCOPED_TRACE(kernel);
    executor_.kernel = kernel;
    const runtime::RandomCase c = runtime::make_case({.name = "one", .heads = 16, .lengths = {30000}}, 5);
    Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, executor_);
    ASSERT_TRUE(run.ok()) << run.status().message();
    std::map<std::size_t, sm90::UnitMerges> before;
    for (int i = 0; i < 3; ++i) {
      expect_two_calls_right(c, *run);
      const auto merges = merges_of(*run);
      EXPECT_EQ(merges.size(), 16) << "units of a tile";
      for (const auto& [at, merge] : merges) {
        if (i > 0) {
          EXPECT_GT(merge.number, before[at].number) << at;
        }
        // In the stream: what comes while the next call merges would keep it waiting for ever.
        auto* word = static_cast<std::uint8_t*>(run->workspace_memory().data) + at;
        ASSERT_EQ(cudaMemsetAsync(word, 0, sizeof(merge), stream_), cudaSuccess);
      }
      before = merges;
    }
  }

  Executor executor_;
  runtime::OracleMemory oracle_;
  int* notes_ = nullptr;  // for hold_until()
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
    expect_right({.name = "plain", .heads = 8, .lengths = lengths}, "mla_64_pingpong");
  }
}
TEST_F(MergeStepTest, OfAnFp8Cache) {
  for (const auto& lengths : {varied(), one_long()}) {
    const runtime::CaseSpec spec{
        .name = "fp8_656", .format = KvFormat::kFp8_656, .heads = 8, .lengths = lengths};
    expect_right(spec, "fp8_32");
    expect_right(spec, "mla_64_pingpong");
  }
}
TEST_F(MergeStepTest, OfTwoRowTiles) {
  expect_right(
      {.name = "fp8_656", .format = KvFormat::kFp8_656, .heads = 66, .lengths = varied(), .sink = true},
      "mla_64_pingpong");
  expect_right({.name = "plain", .heads = 66, .lengths = one_long(), .sink = true}, "mla_64_pingpong");
}

TEST_F(MergeStepTest, OfTeams) {
  const runtime::CaseSpec specs[] = {{.name = "one", .heads = 16, .lengths = {30000}, .sink = true},
                                     {.name = "two", .heads = 16, .lengths = {9000, 12000}},
                                     {.name = "fp16", .dtype = Dtype::kF16, .heads = 16, .lengths = {30000}}};
  for (const runtime::CaseSpec& spec : specs) {
    const runtime::RandomCase c = runtime::make_case(spec, 5);
    for (int team : {4, 8, 16}) {
      expect_teams_right(c, spec.name, "mla_16_team" + std::to_string(team), team);
    }
  }
  expect_other_numbers("mla_16_team8");
  expect_teams_right({.name = "three", .heads = 10, .lengths = {3000, 20000, 5000}}, "mla_16_team8", 8);
  expect_teams_right({.name = "fp8_656", .format = KvFormat::kFp8_656, .heads = 16, .lengths = {30000}},
                     "fp8_16_team8", 8);
}

}  // namespace
}  // namespace flashlatent
