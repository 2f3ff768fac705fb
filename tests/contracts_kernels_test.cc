// Contracts of the CUDA kernels that take the same latent problems, each by name: the dispatcher would pick
// one of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <tuple>

#include "contracts.h"
#include "core/element.h"
#include "device_tensor.h"
#include "dispatch/select.h"
#include "flashlatent/plan.h"
#include "runtime/bench_check.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;

constexpr const char* kKernels[] = {"mla_16_transposed", "mla_16",          "mla_16_team4", "mla_16_team8",
                                    "mla_16_team16",     "mla_64_pingpong", "mla_64_roles"};
constexpr const char* kOfFp8[] = {"fp8_32", "fp8_16_team8", "mla_16_transposed", "fp8_64", "mla_64_pingpong"};
constexpr const char* kOfE4m3Products[] = {"mla_64_e4m3"};
constexpr const char* kOfSeparate[] = {"gqa_16", "gqa_128_split"};

class KernelContracts : public Contracts {
 protected:
  static std::vector<int> many_lengths() {
    std::vector<int> lengths(300);
    for (int i = 0; i < 300; ++i) lengths[i] = 64 * (5 + i * 7 % 23) + i % 3;
    return lengths;
  }

  /// By each kernel: bits of reruns, and some rows against the oracle.
  void expect_long_parts_right(DecodeProblem problem, const std::vector<int>& lengths,
                               std::span<const char* const> kernels) {
    problem.options.softmax_scale = 1.0F / 24;
    Result<runtime::BenchInput> input = runtime::make_bench_input(problem, lengths, 1, 1, executor_);
    ASSERT_TRUE(input.ok()) << input.status().message();
    for (const char* kernel : kernels) {
      executor_.kernel = kernel;
      expect_same_runs(*input, 4);
      Result<runtime::Comparison> sample = runtime::compare_sample(*input, 32, executor_, &oracle_);
      ASSERT_TRUE(sample.ok()) << sample.status().message();
      EXPECT_TRUE(sample->ok()) << kernel << " " << to_string(input->problem) << ": "
                                << runtime::to_string(*sample);
    }
  }

  /// `runs` calls one after another give the same bits, the last of which it leaves in the outputs.
  void expect_same_runs(const runtime::BenchInput& input, int runs) {
    const DecodeProblem& problem = input.problem;
    Result<runtime::Buffer> plan_memory =
        runtime::Buffer::allocate(executor_, *plan_bytes(problem, executor_));
    Result<runtime::Buffer> workspace =
        runtime::Buffer::allocate(executor_, *workspace_bytes(problem, executor_));
    ASSERT_TRUE(plan_memory.ok() && workspace.ok());
    ASSERT_TRUE(plan(problem, input.inputs.cache_seqlens, plan_memory->memory(), executor_).ok());
    std::vector<std::uint16_t> first, out(input.outputs.out.elements());
    int different = 0;
    for (int i = 0; i < runs; ++i) {
      ASSERT_TRUE(flashlatent::decode(problem, input.inputs, input.outputs, plan_memory->memory(),
                                      workspace->memory(), executor_)
                      .ok());
      ASSERT_TRUE(
          runtime::copy_to_host(out.data(), input.outputs.out.data, out.size() * sizeof(out[0]), executor_)
              .ok());
      if (i == 0) first = out;
      different += out != first;
    }
    EXPECT_EQ(different, 0) << executor_.kernel << " " << to_string(problem);
  }

  /// decode() by the executor's kernel, which must be the one that runs. Only mla_64_roles has a substitute,
  /// for tensors that lie as it cannot read or write: by name it refuses those and says who runs, and that
  /// one is given its plan, as where the library has picked it.
  void decode_by_name(runtime::DecodeRun& run, const DecodeOutputs& outputs, bool lies_otherwise) {
    const DecodeProblem& problem = run.problem();
    ASSERT_TRUE(run.plan().ok());
    const Result<Plan> plan = Plan::make(problem, executor_);
    ASSERT_TRUE(plan.ok());
    const Result<std::string> ran = plan->running_kernel(run.inputs(), outputs);
    const Status status = plan->decode(run.inputs(), outputs, run.plan_memory(), run.workspace_memory());
    ASSERT_EQ(ran.status().code(), status.code()) << status.message();
    if (ran.ok()) {
      EXPECT_EQ(*ran, executor_.kernel);
      return;
    }
    ASSERT_EQ(status.code(), StatusCode::kUnsupported) << status.message();
    EXPECT_TRUE(executor_.kernel == "mla_64_roles" && lies_otherwise) << to_string(problem);
    EXPECT_NE(status.message().find("without a kernel by name mla_64_pingpong runs"), std::string::npos)
        << status.message();
    const Selection picked = *select(problem, executor_);
    const DecodeKernel* other = picked.kernel->substitute(problem, run.inputs(), outputs, nullptr);
    ASSERT_NE(other, nullptr);
    ASSERT_TRUE(other
                    ->launch({problem, run.inputs(), outputs, picked.geometry, picked.prefix,
                              run.plan_memory(), run.workspace_memory(), executor_})
                    .ok());
  }

  /// Contracts::expect_right() by the executor's kernel, which must take the case.
  void expect_right(const CaseSpec& spec, runtime::RowSample sample = {}) {
    expect_right(case_of(spec, 1), spec.name, sample);
  }
  void expect_right(const runtime::RandomCase& c, const std::string& name, runtime::RowSample sample = {}) {
    ASSERT_TRUE(taken(c.problem)) << name;
    const ConstTensorView& q = c.inputs.q;
    const bool gaps = q.strides[q.rank - 2] != c.problem.cache.qk_dim;
    runtime::DecodeRun run = place(c, executor_);
    decode_by_name(run, run.outputs(), gaps || c.problem.cache.heads > 1 || c.inputs.kv_cache.shape[0] == 0);
    if (HasFatalFailure()) return;
    const Status fetched = run.fetch();
    ASSERT_TRUE(fetched.ok()) << fetched.message();
    const runtime::Comparison result = compare(c, run, sample);
    EXPECT_TRUE(result.ok()) << name << " " << to_string(c.problem) << ": " << runtime::to_string(result);
  }

  static std::span<const char* const> kernels_of(KvFormat format) {
    if (format == KvFormat::kFp8_656) return kOfFp8;
    return kKernels;
  }

  /// By each kernel that takes the cache.
  void expect_right_of_all(const CaseSpec& spec) {
    const runtime::RandomCase c = runtime::make_case(spec, 1);
    int takers = 0;
    for (const char* kernel : kernels_of(spec.format)) {
      executor_.kernel = kernel;
      if (!taken(c.problem)) continue;
      ++takers;
      expect_right(c, spec.name);
      if (HasFailure()) FAIL() << kernel << ": " << spec.name;
    }
    EXPECT_GE(takers, 2) << spec.name;
  }

  /// By each kernel that takes the case, its requests `times` times, with all its heads and with fewer; some
  /// rows.
  void expect_heads_right(const CaseSpec& spec, int times = 1) {
    runtime::RandomCase c = runtime::make_case(spec, 1);
    if (spec.sparse) sort_indices(c);
    repeat_requests(c, times);
    for (int heads : {spec.heads, spec.heads / 2, spec.heads / 4}) {
      c.problem.query.heads = heads;
      c.inputs.q.shape[2] = heads;
      int takers = 0;
      for (const char* kernel : kernels_of(spec.format)) {
        executor_.kernel = kernel;
        if (!taken(c.problem)) continue;
        ++takers;
        expect_right(c, spec.name, {.first = 0, .stride = times > 1 ? 61 : 29});
        if (HasFailure()) FAIL() << kernel << ": " << spec.name;
      }
      EXPECT_GE(takers, 2);
    }
  }
  /// By each kernel that takes them: 12 requests, of which each CTA of a team of 8 has some blocks, and 140,
  /// which stay whole.
  void expect_rising_scores_right(bool sparse) {
    constexpr int kTimes = 4;
    std::vector<int> many(140 / kTimes);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = 130 + static_cast<int>(i) * 37 % 200;
    for (const auto& [name, steps] : hard_score_steps()) {
      for (const std::vector<int>& lengths : {std::vector<int>(12 / kTimes, 3000), many}) {
        for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
          if (sparse && format == KvFormat::kPlain) continue;
          CaseSpec spec{.name = name,
                        .format = format,
                        .heads = 32,
                        .lengths = lengths,
                        .score_steps = steps,
                        .step_tokens = ScoreSteps::kTokens};
          if (sparse) {
            spec.page_size = *std::max_element(lengths.begin(), lengths.end());
            spec.sparse = true;
            spec.topk = spec.page_size;
          }
          expect_heads_right(spec, kTimes);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  /// In the order of tokens, of requests of one page each.
  static void sort_indices(runtime::RandomCase& c) {
    const ConstTensorView& view = c.inputs.indices;
    auto* indices = const_cast<std::int32_t*>(static_cast<const std::int32_t*>(view.data));  // c's own
    const std::int64_t rows = view.shape[0] * view.shape[1], topk = view.shape[2];
    for (std::int64_t row = 0; row < rows; ++row) {
      std::sort(indices + row * topk, indices + (row + 1) * topk);
    }
  }
  /// A team shares out 0 to 17 blocks and more, by itself and among other teams.
  void expect_block_counts_right(KvFormat format) {
    auto expect = [&](CaseSpec spec) {
      spec.format = format;
      expect_right_of_all(spec);
    };
    std::vector<int> batch;
    for (int blocks = 0; blocks <= 20; ++blocks) {
      expect({.name = "one request", .heads = 4, .lengths = {64 * blocks}});
      batch.push_back(64 * blocks + 1);
    }
    expect({.name = "one of each", .heads = 16, .lengths = batch, .sink = true});
    expect({.name = "split", .heads = 4, .lengths = {9000}});
    expect({.name = "split", .heads = 3, .lengths = {30000, 1, 0, 130}, .sink = true});
  }
  /// From a plain cache and from an fp8_656 one.
  void expect_right_of_both(CaseSpec spec) {
    expect_right_of_all(spec);
    spec.format = KvFormat::kFp8_656;
    expect_right_of_all(spec);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, KernelContracts, ::testing::Values(Backend::kCuda), backend_name);

TEST_P(KernelContracts, BlockCounts) {
  expect_block_counts_right(KvFormat::kPlain);
}
TEST_P(KernelContracts, BlockCountsOfAnFp8Cache) {
  expect_block_counts_right(KvFormat::kFp8_656);
}

// One request, or a few, whose even shares teams of mla_64_pingpong have.
TEST_P(KernelContracts, EvenSharesOfTeams) {
  executor_.kernel = "mla_64_pingpong";
  for (const std::vector<int>& lengths : {std::vector<int>{9000}, {2100}, {8000, 1, 0, 130}}) {
    expect_right({.name = "whole tile", .heads = 64, .lengths = lengths, .sink = true}, kSomeRows);
    expect_right({.name = "causal",
                  .query_tokens = 3,
                  .heads = 16,
                  .page_size = 32,
                  .lengths = lengths,
                  .causal = true,
                  .invalid_pages = true,
                  .strided = true},
                 kSomeRows);
  }
  for (const std::vector<int>& lengths : {std::vector<int>{2100, 1900}, {8000, 1, 0, 130}}) {
    expect_right({.name = "two tiles", .heads = 80, .lengths = lengths, .sink = true}, kSomeRows);
    expect_right({.name = "two tiles", .query_tokens = 2, .heads = 64, .lengths = lengths, .causal = true},
                 kSomeRows);
  }
  expect_right(
      {.name = "ragged", .heads = 20, .lengths = {9000, 5, 5000}, .ragged_tokens = {2, 0, 1}, .causal = true},
      kSomeRows);
  // By length.
  for (const auto& [heads, query_tokens] : {std::pair{16, 3}, {80, 1}}) {
    expect_right({.name = "by length",
                  .query_tokens = query_tokens,
                  .heads = heads,
                  .lengths = {130, 0, 24000},
                  .causal = true,
                  .invalid_pages = true},
                 kSomeRows);
  }
  expect_right({.name = "by length, ragged",
                .heads = 20,
                .lengths = {20000, 5, 9000},
                .ragged_tokens = {2, 0, 1},
                .causal = true},
               kSomeRows);
  expect_same_bits({.name = "reruns", .heads = 64, .lengths = {24000, 300}});
  // As many requests as there may be, of which most are short.
  std::vector<int> many(32, 70);
  many[3] = 2000;
  many[31] = 0;
  expect_right({.name = "many", .heads = 64, .lengths = many, .sink = true});
  expect_right({.name = "empty", .heads = 64, .lengths = {0, 0, 0}});
  expect_same_bits({.name = "reruns", .heads = 64, .lengths = {9000, 300}});
  expect_same_bits({.name = "reruns", .heads = 128, .lengths = {2000, 300}});
}

TEST_P(KernelContracts, DimensionsAndDtypes) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (auto [qk_dim, v_dim] : {std::pair{576, 512}, {512, 512}, {320, 256}}) {
      for (int page_size : {1, 16, 64}) {
        // 4,000 tokens are split by every kernel.
        for (const std::vector<int>& lengths : {std::vector<int>{300, 5, 0}, {4000, 64}}) {
          expect_right_of_all({.name = "dims",
                               .dtype = dtype,
                               .heads = 12,
                               .qk_dim = qk_dim,
                               .v_dim = v_dim,
                               .page_size = page_size,
                               .lengths = lengths,
                               .invalid_pages = page_size != 16});
        }
      }
    }
  }
}

// Blocks come by one copy, by one for each page that they lie in, or token by token; heads begin at whole
// chunks of 128 bytes, or not.
TEST_P(KernelContracts, PagesAndBoxes) {
  for (int page_size : {16, 32, 48, 64, 80, 192}) {
    for (int kv_heads : {1, 3}) {
      CaseSpec spec{.name = "pages", .heads = 16 * kv_heads, .kv_heads = kv_heads, .page_size = page_size};
      spec.lengths = {1, 17, 900};
      spec.invalid_pages = true;
      expect_right_of_all(spec);
      spec.strided = true;
      expect_right_of_all(spec);
    }
  }
}

// The same where requests are split, or shared by teams.
TEST_P(KernelContracts, LongPartsOfStridedHeads) {
  for (const std::vector<int>& lengths : {std::vector<int>{9000}, std::vector<int>{3000, 2500}}) {
    for (int rows : {8, 16, 64}) {
      CaseSpec spec{.name = "strided heads", .heads = 2 * rows, .kv_heads = 2, .lengths = lengths};
      spec.strided = true;
      for (const char* kernel : {"mla_64_pingpong", "mla_16_team8", "mla_16"}) {
        executor_.kernel = kernel;
        if (taken(spec)) expect_right(spec, kSomeRows);
      }
    }
  }
}

TEST_P(KernelContracts, RowTiles) {
  for (const char* kernel : {"mla_16_team4", "mla_16_team8", "mla_16_team16"}) {
    executor_.kernel = kernel;
    for (int heads : {1, 16, 17, 40, 128}) {
      expect_right({.name = "heads", .heads = heads, .lengths = {33, 1100}});
    }
    for (bool strided : {false, true}) {
      expect_right(
          {.name = "kv heads", .heads = 48, .kv_heads = 3, .lengths = {33, 700}, .strided = strided});
    }
    expect_right({.name = "more than teams", .heads = 300, .lengths = {200, 0, 70}});
  }
}

TEST_P(KernelContracts, QueryTokens) {
  for (int tokens : {2, 5}) {
    expect_right_of_both({.name = "causal",
                          .query_tokens = tokens,
                          .heads = 3,
                          .lengths = {1, 2, 64, 66, 1000, 0, 1100},
                          .causal = true,
                          .sink = true});
  }
  expect_right_of_both({.name = "ragged",
                        .heads = 5,
                        .lengths = {5, 100, 64, 2200, 0, 300},
                        .ragged_tokens = {1, 3, 0, 2, 1, 3},
                        .causal = true,
                        .sink = true});
  expect_right_of_both({.name = "none", .heads = 16, .lengths = {100, 7}, .ragged_tokens = {0, 0}});
}

TEST_P(KernelContracts, Sparse) {
  CaseSpec spec{.name = "sparse",
                .query_tokens = 2,
                .heads = 8,
                .lengths = {3000, 100, 2000},
                .sparse = true,
                .topk = 500,
                .topk_lengths = {500, 0, 65},
                .skipped_indices = 0.2};
  expect_right_of_both(spec);
  spec.topk = 2048;
  spec.topk_lengths = {};
  expect_right_of_both(spec);
}

TEST_P(KernelContracts, HugeLogits) {
  for (float scale : kHugeLogits) {
    expect_right_of_both({.name = "huge", .heads = 16, .lengths = {1300, 5}, .logit_scale = scale});
    for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
      expect_heads_right({.name = "huge, 64 heads",
                          .format = format,
                          .heads = 64,
                          .lengths = {700, 64},
                          .logit_scale = scale});
    }
  }
  expect_right_of_both({.name = "negative", .heads = 16, .lengths = {1300, 5}, .logit_scale = -2.0F});
}

// Some kernels leave the base of a row's probabilities alone until it is too small.
TEST_P(KernelContracts, RisingAndFallingScores) {
  expect_rising_scores_right(false);
}
// The base moves, and before it is known again how much was summed up, a token has a higher score yet.
TEST_P(KernelContracts, LeapingScores) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    for (int apart : {32, 64}) {
      // 132 requests, one a CTA, so that each stays whole.
      expect_heads_right(leaping_scores(apart, format, std::vector<int>(12, kLeapingTokens)), 11);
      if (HasFatalFailure()) return;
    }
  }
}
/// After many small scores a token may leap above the base without moving it. Its weight is then rounded
/// where plain code has 1. This is the worst that can come of it (docs/numerics.md, "What an older maximum
/// costs"): values of all other tokens are 0, and the weight lies between two of bf16.
TEST_P(KernelContracts, ALeapAfterManySmallScores) {
  constexpr int kApart = 640, kPages = 130 * kApart;  // 40,960 tokens from leap to leap
  constexpr double kUnit = 0x1p-8;                    // of bf16
  for (int exponent : {3, 4, 5}) {
    runtime::RandomCase c = runtime::make_case({.heads = 1, .page_size = 64, .lengths = {128}}, 1);
    const auto* pages = static_cast<const std::int32_t*>(c.inputs.block_table.data);
    const ConstTensorView& cache = c.inputs.kv_cache;
    auto* elements = static_cast<std::uint16_t*>(const_cast<void*>(cache.data));
    for (int page : {pages[0], pages[1]}) {
      for (int token = 0; token < 64; ++token) {
        std::memset(elements + page * cache.strides[0] + token * cache.strides[1], 0, 576 * 2);
      }
    }
    std::uint16_t* leap = elements + pages[1] * cache.strides[0] + 63 * cache.strides[1];
    const std::uint16_t rest = float_to_bf16(static_cast<float>(std::log2(1 + kUnit)));
    for (int i = 0; i < 512; ++i) leap[i] = float_to_bf16(1 + static_cast<float>(i % 128) / 128);
    leap[512] = float_to_bf16(static_cast<float>(exponent));
    leap[513] = rest;
    auto* q = static_cast<std::uint16_t*>(const_cast<void*>(c.inputs.q.data));
    std::memset(q, 0, 576 * 2);
    q[512] = q[513] = float_to_bf16(1);
    c.problem.options.softmax_scale = std::log(2.0F);

    std::vector<std::int32_t> table(kPages, pages[0]);
    for (int i = kApart - 1; i < kPages; i += kApart) table[i] = pages[1];
    const std::vector<std::int32_t> length = {64 * kPages};
    c.problem.cache.max_pages = kPages;
    c.inputs.block_table.data = table.data();
    c.inputs.block_table.shape[1] = c.inputs.block_table.strides[0] = kPages;
    c.inputs.cache_seqlens.data = length.data();

    const double weight = std::exp2(exponent + static_cast<double>(bf16_to_float(rest)));
    const double leaps = kPages / kApart, sum = 64.0 * kPages - leaps + leaps * weight;
    int takers = 0;
    for (const char* kernel : kernels_of(KvFormat::kPlain)) {
      executor_.kernel = kernel;
      if (!taken(c.problem)) continue;
      ++takers;
      runtime::DecodeRun run = place(c, executor_);
      ASSERT_TRUE(run.run().ok() && run.fetch().ok()) << kernel;
      const auto* out = static_cast<const std::uint16_t*>(run.out().data);
      for (int i = 0; i < 512; ++i) {
        const double right = leaps * weight * (1 + i % 128 / 128.0) / sum;
        EXPECT_NEAR(bf16_to_float(out[i]), right, 2.25 * kUnit * right) << kernel << ", column " << i;
      }
      const double lse = std::log(sum);
      EXPECT_NEAR(*static_cast<const float*>(run.lse().data), lse, 1e-5 * (1 + lse)) << kernel;
    }
    EXPECT_GE(takers, 2);
  }
}
TEST_P(KernelContracts, RisingAndFallingScoresOfSparse) {
  expect_rising_scores_right(true);
}

// Lengths that change after the plan was made: shares change, splits stay.
TEST_P(KernelContracts, APlanOutlivesItsLengths) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    for (const std::vector<int>& lengths :
         {std::vector<int>{1000, 0, 700}, std::vector<int>{20000, 10, 64, 900}}) {
      runtime::RandomCase longer = runtime::make_case({.format = format, .heads = 8, .lengths = lengths}, 2);
      runtime::RandomCase shorter = longer;
      std::vector<std::int32_t> fewer;
      for (int length : lengths) fewer.push_back(length / 10);
      shorter.inputs.cache_seqlens.data = fewer.data();
      for (const char* kernel : kernels_of(format)) {
        executor_.kernel = kernel;
        ASSERT_TRUE(taken(longer.problem));  // 8 heads
        expect_right_with_plan_of(longer, shorter, kernel);
        expect_right_with_plan_of(shorter, longer, kernel);
      }
    }
  }
}

// NaN and Inf in live data reach the rows that see them, and no others.
TEST_P(KernelContracts, LivePoison) {
  runtime::RandomCase c = runtime::make_case({.heads = 8, .page_size = 64, .lengths = {1100, 1100}}, 3);
  const auto* table = static_cast<const std::int32_t*>(c.inputs.block_table.data);
  const ConstTensorView& cache = c.inputs.kv_cache;
  auto* elements = const_cast<std::uint16_t*>(static_cast<const std::uint16_t*>(cache.data));
  for (std::uint16_t poison : {0x7FC0, 0x7F80, 0xFF80}) {
    elements[table[9] * cache.strides[0] + 7 * cache.strides[1] + 33] = poison;  // of the first request
    for (const char* kernel : kKernels) {
      executor_.kernel = kernel;
      expect_right(c, kernel);
    }
  }
}

// Values of all magnitudes in columns that no score sees: what shares a row with a huge value is right as far
// as the row's tolerance goes, and rows beside it, of nothing but tiny ones or of zeros, are themselves.
TEST_P(KernelContracts, Magnitudes) {
  struct Shape {
    Dtype dtype;
    int heads;
    std::vector<int> lengths;
    int first = 0;  // of `values` below, one a request
  };
  for (const auto& [dtype, heads, lengths, first] : {Shape{Dtype::kBF16, 16, {1, 400, 1100, 130}},
                                                     {Dtype::kF16, 16, {1, 400, 1100, 130}},
                                                     {Dtype::kBF16, 40, {1, 400, 9000, 130}},
                                                     {Dtype::kBF16, 128, {5000}, 1},
                                                     {Dtype::kBF16, 128, {5000}, 2}}) {
    const int requests = static_cast<int>(lengths.size());
    runtime::RandomCase c =
        runtime::make_case({.dtype = dtype, .heads = heads, .page_size = 64, .lengths = lengths}, 5);
    constexpr int kUnseen = 448;  // columns
    auto elements = [](const ConstTensorView& view) {
      return const_cast<std::uint16_t*>(static_cast<const std::uint16_t*>(view.data));
    };
    const ConstTensorView &q = c.inputs.q, &cache = c.inputs.kv_cache, &table = c.inputs.block_table;
    for (int i = 0; i < requests * heads; ++i) std::fill_n(elements(q) + i * q.strides[2], kUnseen, 0);
    // The last bf16 that is finite, one some thousandth of the largest (of a row's columns together too much
    // for fp32, of 5,000 tokens not), a subnormal, 0; of fp16 likewise.
    const bool bf16 = dtype == Dtype::kBF16;
    const std::uint16_t values[] = {static_cast<std::uint16_t>(bf16 ? 0x7F7F : 0x7BFF),
                                    static_cast<std::uint16_t>(bf16 ? 0x7980 : 0x5000), 0x0010, 0};
    for (int request = 0; request < requests; ++request) {
      for (int token = 0; token < lengths[request]; ++token) {
        const int page =
            static_cast<const std::int32_t*>(table.data)[request * table.strides[0] + token / 64];
        std::uint16_t* row = elements(cache) + page * cache.strides[0] + token % 64 * cache.strides[1];
        for (int column = 0; column < kUnseen; column += request == 1 ? 7 : 1) {
          row[column] = static_cast<std::uint16_t>(values[first + request] | (column % 3 == 0 ? 0x8000 : 0));
        }
      }
    }
    for (const char* kernel : kKernels) {
      executor_.kernel = kernel;
      if (taken(c.problem)) expect_right(c, kernel);
    }
  }
}

// Without pages there are no tokens, whatever the page table and the lengths say.
TEST_P(KernelContracts, NoPages) {
  for (const auto& [heads, longest] : {std::pair{8, 700}, {64, 700}, {128, 700}, {64, 20000}}) {
    runtime::RandomCase c = runtime::make_case({.heads = heads, .lengths = {300, 0, longest, 64}}, 4);
    c.inputs.kv_cache.shape[0] = 0;
    for (const char* kernel : kKernels) {
      executor_.kernel = kernel;
      if (taken(c.problem)) expect_right(c, kernel);
    }
  }
}

TEST_P(KernelContracts, RerunsAreIdentical) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    for (const char* kernel : kernels_of(format)) {
      executor_.kernel = kernel;
      expect_same_bits({.name = "reruns", .format = format, .heads = 8, .lengths = {1000, 3, 250}});
      expect_same_bits({.name = "reruns", .format = format, .heads = 8, .lengths = {20000, 3, 250}});
    }
  }
}

// Calls that fill the device: tens of blocks a CTA, of several requests, while loads of KV and of the next
// request's Q stand in line for memory. What is read while its place is filled again comes out otherwise
// each time.
TEST_P(KernelContracts, LongPartsOfManyRequests) {
  for (const auto& [dtype, lengths] : {std::pair{Dtype::kF16, std::vector<int>(16, 16384)},
                                       {Dtype::kBF16, std::vector<int>(32, 8192)},
                                       {Dtype::kF16, std::vector<int>{30000, 5000, 70, 40000, 64, 20000}},
                                       {Dtype::kBF16, many_lengths()}}) {
    DecodeProblem problem;
    problem.query.heads = 16;
    problem.cache.dtype = dtype;
    expect_long_parts_right(problem, lengths, std::span(kKernels).subspan(1));
    problem.query.heads = 8;
    expect_long_parts_right(problem, lengths, std::span(kKernels).first(1));  // mla_16_transposed
  }
}
TEST_P(KernelContracts, LongPartsOfAnFp8Cache) {
  for (const std::vector<int>& lengths : {std::vector<int>(16, 16384), many_lengths()}) {
    DecodeProblem problem;
    problem.query.heads = 16;
    problem.cache.format = KvFormat::kFp8_656;
    expect_long_parts_right(problem, lengths, kOfFp8);
    problem.query.heads = 32;
    constexpr const char* kOfMoreRows[] = {"fp8_32", "fp8_64", "mla_64_pingpong"};
    expect_long_parts_right(problem, lengths, kOfMoreRows);
  }
}
TEST_P(KernelContracts, LongPartsOfE4m3Products) {
  for (const std::vector<int>& lengths : {std::vector<int>(16, 16384), many_lengths()}) {
    DecodeProblem problem;
    problem.cache.format = KvFormat::kE4m3;
    for (bool e4m3 : {true, false}) {
      problem.query.e4m3 = e4m3;
      problem.options.products = e4m3 ? Products::kAuto : Products::kFp8;
      for (int heads : {16, 64}) {
        problem.query.heads = heads;
        expect_long_parts_right(problem, lengths, kOfE4m3Products);
      }
    }
  }
}
TEST_P(KernelContracts, LongPartsOfSeparateKeysAndValues) {
  for (const std::vector<int>& lengths : {std::vector<int>(16, 16384), many_lengths()}) {
    DecodeProblem problem;
    problem.query.heads = 16;
    problem.cache.layout = KvLayout::kSeparate;
    problem.cache.heads = 4;
    problem.cache.qk_dim = problem.cache.v_dim = 128;
    expect_long_parts_right(problem, lengths, kOfSeparate);
  }
}

// 4 bytes are enough for `out`, its address and strides, and what lies between its rows is left alone.
TEST_P(KernelContracts, OutputsAlignedToFourBytes) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    for (int heads : {5, 80}) {
      const runtime::RandomCase c = runtime::make_case({.name = "outputs",
                                                        .format = format,
                                                        .query_tokens = 2,
                                                        .heads = heads,
                                                        .lengths = {2, 300, 0, 1100}},
                                                       1);
      for (const char* kernel : kernels_of(format)) {
        executor_.kernel = kernel;
        if (!taken(c.problem)) continue;
        runtime::DecodeRun run = place(c, executor_);
        TensorView rows = run.outputs().out;
        const int dim = c.problem.cache.v_dim;
        rows.strides = {2 * (heads * (dim + 2) + 2), heads * (dim + 2) + 2, dim + 2, 1};
        Tensor out(executor_, rows, 2);
        DecodeOutputs outputs = run.outputs();
        outputs.out = out.upload();
        decode_by_name(run, outputs, true);
        if (HasFailure()) FAIL() << kernel;
        out.download();
        ASSERT_TRUE(run.fetch().ok());
        std::vector<std::uint16_t> values;
        for (int i = 0; i < 4 * 2 * heads; ++i) {
          const auto* row = out.row<std::uint16_t>(i / heads / 2, i / heads % 2, i % heads);
          values.insert(values.end(), row, row + dim);
          for (int gap : {0, 1}) ASSERT_EQ(row[dim + gap], kUntouched * 0x0101) << kernel;
        }
        ConstTensorView compact = run.out();
        compact.data = values.data();
        const auto result =
            runtime::compare(c.problem, c.inputs, compact, run.lse(), {}, {}, {}, {}, {}, &oracle_);
        EXPECT_TRUE(result.ok()) << kernel << " " << to_string(c.problem) << ": "
                                 << runtime::to_string(result);
      }
    }
  }
}

// Several row tiles; parts of more segments than are listed at once; pages shorter than a block, and such as
// have no boxes.
TEST_P(KernelContracts, RolesOfManyRows) {
  executor_.kernel = "mla_64_roles";
  // Each of 66 parts has some 15 segments, of which 8 are listed at once.
  std::vector<int> many(1000);
  for (int i = 0; i < 1000; ++i) many[i] = i % 5 == 0 ? 0 : 1 + i * 37 % 100;
  for (int page_size : {1, 5, 16, 32, 61, 64, 96, 128}) {
    expect_right(
        {.name = "two tiles", .heads = 80, .page_size = page_size, .lengths = {1, 33, 300, 0, 1100}});
    expect_right({.name = "causal",
                  .query_tokens = 3,
                  .heads = 48,
                  .page_size = page_size,
                  .lengths = {5, 64, 2200, 0, 31},
                  .causal = true,
                  .sink = true,
                  .invalid_pages = true},
                 kSomeRows);
  }
  for (int page_size : {5, 32}) {
    expect_right({.name = "many", .heads = 70, .page_size = page_size, .lengths = many, .sink = true},
                 kSomeRows);
    expect_right({.name = "ragged",
                  .heads = 40,
                  .page_size = page_size,
                  .lengths = {5, 100, 64, 2200, 0, 300},
                  .ragged_tokens = {1, 3, 0, 2, 1, 3},
                  .causal = true});
  }
  for (double skipped : {0.0, 0.2}) {
    expect_right({.name = "sparse",
                  .query_tokens = 3,
                  .heads = 80,
                  .lengths = {3000, 5, 0, 700},
                  .sink = true,
                  .strided = true,
                  .sparse = true,
                  .topk = 700,
                  .topk_lengths = {700, 3, 0, 333},
                  .skipped_indices = skipped});
  }
  DecodeProblem problem;
  problem.query.heads = 128;
  for (auto [dtype, page_size] : {std::pair{Dtype::kBF16, 64}, {Dtype::kF16, 64}, {Dtype::kBF16, 1}}) {
    problem.cache.dtype = dtype;
    problem.cache.page_size = page_size;
    expect_long_parts_right(problem, std::vector<int>(40, 6000), std::vector<const char*>{"mla_64_roles"});
    expect_long_parts_right(problem, many_lengths(), std::vector<const char*>{"mla_64_roles"});
  }
}

// Shares of one request each, even or by length; by boxes and token by token.
TEST_P(KernelContracts, RolesShares) {
  executor_.kernel = "mla_64_roles";
  for (int page_size : {1, 5, 64}) {
    for (const std::vector<int>& lengths : {std::vector<int>{9000}, {1}, {0}, {8000, 1, 0, 130}}) {
      expect_right({.name = "shares", .heads = 80, .page_size = page_size, .lengths = lengths, .sink = true},
                   kSomeRows);
      expect_right({.name = "causal shares",
                    .query_tokens = 3,
                    .heads = 40,
                    .page_size = page_size == 64 ? 32 : page_size,
                    .lengths = lengths,
                    .causal = true,
                    .invalid_pages = true,
                    .strided = true},
                   kSomeRows);
    }
    for (int heads : {80, 150}) {
      expect_right({.name = "shares of four and eight tiles",
                    .query_tokens = 3,
                    .heads = heads,
                    .page_size = page_size,
                    .lengths = {3000, 2, 300},
                    .causal = true},
                   kSomeRows);
    }
    expect_right({.name = "ragged shares",
                  .heads = 40,
                  .page_size = page_size,
                  .lengths = {9000},
                  .ragged_tokens = {3},
                  .causal = true},
                 kSomeRows);
  }
  for (double skipped : {0.0, 0.2}) {
    expect_right({.name = "sparse shares",
                  .heads = 80,
                  .lengths = {9000, 5, 0, 2000},
                  .sparse = true,
                  .topk = 4000,
                  .topk_lengths = {4000, 3, 0, 1333},
                  .skipped_indices = skipped},
                 kSomeRows);
  }
  for (int page_size : {5, 32}) {
    expect_same_bits({.name = "reruns", .heads = 128, .page_size = page_size, .lengths = {9000}});
  }
  // A plan outlives its lengths: shares have more or fewer blocks then, or none.
  for (auto [lengths, page_size] :
       {std::pair{std::vector<int>{9000}, 64}, {{8000, 10, 64, 900}, 64}, {{8000, 10, 64, 900}, 5}}) {
    const runtime::RandomCase longer =
        runtime::make_case({.heads = 80, .page_size = page_size, .lengths = lengths}, 2);
    runtime::RandomCase shorter = longer;
    std::vector<std::int32_t> fewer;
    for (int length : lengths) fewer.push_back(length / 10);
    shorter.inputs.cache_seqlens.data = fewer.data();
    expect_right_with_plan_of(longer, shorter, "mla_64_roles", kSomeRows);
    expect_right_with_plan_of(shorter, longer, "mla_64_roles", kSomeRows);
  }
}

TEST_P(KernelContracts, BatchInvariant) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    for (bool sparse : {false, true}) {
      CaseSpec spec{.format = format, .heads = 8, .lengths = {5000, 64, 0, 2049, 300}};
      spec.batch_invariant = true;
      spec.sparse = sparse;
      spec.topk = sparse ? 2200 : 0;  // more than one split
      for (const char* kernel : kernels_of(format)) {
        if (!should_take(kernel, runtime::problem_of(spec))) continue;
        executor_.kernel = spec.name = kernel;
        expect_batch_invariant(spec);
      }
    }
  }
}

TEST_P(KernelContracts, BatchInvariantIsRefusedWhereItCannotBeKept) {
  for (const auto& [kernel, format] : {std::pair{"mla_16_team8", KvFormat::kPlain},
                                       {"fp8_16_team8", KvFormat::kFp8_656},
                                       {"mla_64_roles", KvFormat::kPlain}}) {
    executor_.kernel = kernel;
    const CaseSpec spec{.format = format, .heads = 16, .lengths = {100}, .batch_invariant = true};
    const Status status = plan_bytes(runtime::make_case(spec, 1).problem, executor_).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find(std::string(kernel) + ": batch_invariant is true"), std::string::npos)
        << status.message();
  }
}

}  // namespace
}  // namespace flashlatent
