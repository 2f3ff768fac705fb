// The contracts of dense decode, one test each, on every backend that is there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "contracts.h"
#include "core/element.h"
#include "flashlatent/combine.h"

namespace flashlatent {
namespace {

using runtime::DecodeRun;
using runtime::RandomCase;

INSTANTIATE_TEST_SUITE_P(Backends, Contracts, kBackends, backend_name);

float lse_at(const DecodeRun& run, int request, int head, int token) {
  const ConstTensorView& lse = run.lse();
  return static_cast<const float*>(
      lse.data)[request * lse.strides[0] + head * lse.strides[1] + token * lse.strides[2]];
}

// 1. The caller owns memory: sizes are asked for, and what is too small or misaligned is refused.
TEST_P(Contracts, SizesDependOnShapesOnlyAndAreEnforced) {
  const RandomCase c = runtime::make_case({.lengths = {500, 3}}, 1);
  DecodeRun run = place(c, executor_);
  Memory plan = run.plan_memory();
  plan.bytes -= 1;
  Status status = flashlatent::plan(c.problem, run.inputs().cache_seqlens, plan, executor_);
  EXPECT_EQ(status.code(), StatusCode::kExhausted);
  EXPECT_NE(status.message().find("plan"), std::string::npos) << status.message();
  plan = run.plan_memory();
  plan.data = static_cast<char*>(plan.data) + 4;
  status = flashlatent::plan(c.problem, run.inputs().cache_seqlens, plan, executor_);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(run.plan().ok());
  Memory workspace = run.workspace_memory();
  workspace.bytes = 1;  // the bound is that of all kernels: half of it may do for the one that is picked
  status =
      flashlatent::decode(c.problem, run.inputs(), run.outputs(), run.plan_memory(), workspace, executor_);
  EXPECT_EQ(status.code(), StatusCode::kExhausted);
  EXPECT_NE(status.message().find("workspace"), std::string::npos) << status.message();
}

// 2. A plan stays right when lengths change after it was made, and rows of length 0 are padding.
TEST_P(Contracts, APlanOutlivesItsLengths) {
  RandomCase longer = runtime::make_case({.heads = 16, .lengths = {0, 700, 1, 64, 900, 2100}}, 2);
  RandomCase shorter = longer;
  std::vector<std::int32_t> lengths = {0, 10, 1, 0, 899, 130};
  shorter.inputs.cache_seqlens.data = lengths.data();
  expect_right_with_plan_of(longer, shorter, "shorter");
  expect_right_with_plan_of(shorter, longer, "longer");
}

// 3. Any shape a model has.
TEST_P(Contracts, BoundaryLengths) {
  for (int page_size : {16, 64}) {
    expect_right({.name = "boundaries",
                  .page_size = page_size,
                  .lengths = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193}});
  }
}

TEST_P(Contracts, HeadCounts) {
  for (int heads : {1, 3, 4, 5, 8, 16, 31, 40, 64, 65, 128, 200}) {
    expect_right({.name = "heads", .heads = heads, .lengths = {33, 200}});
  }
  for (auto [heads, kv_heads] : {std::pair{4, 2}, {6, 3}, {8, 8}, {32, 2}}) {
    expect_right({.name = "kv heads", .heads = heads, .kv_heads = kv_heads, .lengths = {33, 200}});
  }
  expect_right({.name = "many tiles",
                .query_tokens = 3,
                .heads = 402,
                .kv_heads = 67,
                .page_size = 16,
                .lengths = {65, 20},
                .causal = true});
}

TEST_P(Contracts, PageSizes) {
  for (int page_size : {1, 2, 7, 16, 32, 48, 61, 64, 96, 128, 256}) {
    expect_right({.name = "pages", .heads = 8, .page_size = page_size, .lengths = {1, 130, 257}});
  }
}

TEST_P(Contracts, DimensionsAndDtypes) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (auto [qk_dim, v_dim] : {std::pair{576, 512}, {512, 512}, {320, 256}}) {
      expect_right({.name = "dims", .dtype = dtype, .qk_dim = qk_dim, .v_dim = v_dim, .lengths = {70, 300}});
    }
  }
}

TEST_P(Contracts, CausalQueryTokens) {
  for (int tokens : {1, 2, 3, 7}) {
    for (int heads : {4, 16, 128}) {
      expect_right({.name = "causal",
                    .query_tokens = tokens,
                    .heads = heads,
                    .lengths = {1, 2, 3, 64, 66, 300},
                    .causal = true});
    }
  }
  expect_right({.name = "many query tokens",
                .query_tokens = 70,
                .heads = 4,
                .lengths = {65, 70, 200},
                .causal = true});
}

TEST_P(Contracts, RaggedQueries) {
  const std::vector<int> lengths = {5, 100, 64, 2200, 0, 300};
  const std::vector<int> tokens = {1, 3, 0, 2, 1, 3};
  for (int heads : {8, 40, 128}) {  // tiles with rows to spare, and tiles that only some requests have
    for (bool batch_invariant : {false, true}) {
      expect_right({.name = "ragged",
                    .heads = heads,
                    .lengths = lengths,
                    .ragged_tokens = tokens,
                    .causal = true,
                    .sink = true,
                    .batch_invariant = batch_invariant});
    }
  }
  expect_right({.name = "KV heads, by token, strided",
                .dtype = Dtype::kF16,
                .heads = 24,
                .kv_heads = 3,
                .page_size = 1,
                .lengths = {130, 3, 65},
                .ragged_tokens = {2, 0, 1},
                .strided = true});
  expect_right({.name = "no query token", .heads = 16, .lengths = {100, 7}, .ragged_tokens = {0, 0}});
  // s_q is only a bound.
  RandomCase c = runtime::make_case(
      {.heads = 8, .lengths = {100, 7, 70}, .ragged_tokens = {1, 0, 1}, .causal = true}, 2);
  c.problem.query.tokens = 4;
  expect_right(c, "wide bound");
}

TEST_P(Contracts, RaggedRequestsDoNotFeelTheirNeighbours) {
  for (int heads : {16, 128}) {
    RandomCase c = runtime::make_case(
        {.heads = heads, .lengths = {100, 200, 150}, .ragged_tokens = {1, 2, 1}, .causal = true}, 11);
    // A query token of the request in the middle, which lies beside the others' tokens.
    auto* q = reinterpret_cast<std::uint16_t*>(const_cast<void*>(c.inputs.q.data));
    q[(1 * heads + 3) * 576 + 5] = from_float(std::numeric_limits<float>::quiet_NaN(), Dtype::kBF16);
    q[(2 * heads + heads - 1) * 576] = from_float(std::numeric_limits<float>::infinity(), Dtype::kBF16);
    expect_right(c, "NaN in a query");
  }
}

TEST_P(Contracts, ManyRequestsAndLongOnes) {
  std::vector<int> lengths(300, 70);
  lengths[7] = 9000;
  expect_right({.name = "skewed", .heads = 4, .lengths = lengths});
  expect_right({.name = "one long request", .heads = 4, .lengths = {20000}});
}

// 4. Strides are honoured; what cannot be served is refused.
TEST_P(Contracts, StridedTensors) {
  expect_right({.name = "strided",
                .query_tokens = 2,
                .heads = 8,
                .kv_heads = 2,
                .lengths = {100, 7},
                .strided = true});
  expect_right(
      {.name = "strided small pages", .heads = 8, .page_size = 1, .lengths = {100, 7}, .strided = true});
}

TEST_P(Contracts, InnermostStrideMustBeOne) {
  const RandomCase c = runtime::make_case({.lengths = {100}}, 1);
  DecodeRun run = place(c, executor_);
  ASSERT_TRUE(run.plan().ok());
  run.inputs().kv_cache.strides[3] = 2;
  const Status status = run.decode();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("kv_cache"), std::string::npos) << status.message();
}

// 5. Unused memory is poison (every case has NaN and Inf there); so is what invalid page entries would name.
TEST_P(Contracts, InvalidPagesAreSkipped) {
  for (int page_size : {1, 16, 32, 64, 256}) {
    expect_right({.name = "invalid pages",
                  .query_tokens = 2,
                  .heads = 8,
                  .page_size = page_size,
                  .lengths = {500, 1000, 64},
                  .causal = true,
                  .invalid_pages = true});
  }
}

TEST_P(Contracts, LiveNanReachesExactlyTheRowsThatSeeIt) {
  for (float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    RandomCase c =
        runtime::make_case({.query_tokens = 3, .heads = 8, .lengths = {200, 130}, .causal = true}, 4);
    // The last token of request 0: only its last query token sees it.
    const int page = static_cast<const std::int32_t*>(c.inputs.block_table.data)[199 / 64];
    auto* kv = reinterpret_cast<std::uint16_t*>(const_cast<void*>(c.inputs.kv_cache.data));
    kv[(page * 64 + 199 % 64) * 576 + 17] = from_float(poison, Dtype::kBF16);
    expect_right(c, "live poison");
    // In a token that all see, and in RoPE columns.
    kv[(page * 64 + 2) * 576 + 570] = from_float(poison, Dtype::kBF16);
    expect_right(c, "live poison");
  }
}

// 6, 7. Empty rows are 0 and -inf; lse is the natural logarithm in (batch, h_q, s_q).
TEST_P(Contracts, EmptyRowsAndLse) {
  RandomCase c = runtime::make_case({.query_tokens = 2, .heads = 4, .lengths = {0, 1}, .causal = true}, 5);
  DecodeRun run = place(c, executor_);
  ASSERT_TRUE(run.run().ok());
  ASSERT_TRUE(run.fetch().ok());
  EXPECT_EQ(run.lse().shape[1], 4);
  EXPECT_EQ(run.lse().shape[2], 2);
  const auto* out = static_cast<const std::uint16_t*>(run.out().data);
  for (int head = 0; head < 4; ++head) {
    // Request 0 is empty; of request 1's two query tokens the first sees nothing, the second one token.
    for (auto [request, token] : {std::pair{0, 0}, {0, 1}, {1, 0}}) {
      EXPECT_EQ(lse_at(run, request, head, token), -std::numeric_limits<float>::infinity());
      for (int d = 0; d < 512; ++d) ASSERT_EQ(out[((request * 2 + token) * 4 + head) * 512 + d], 0);
    }
    double score = 0;
    const auto* q = static_cast<const std::uint16_t*>(c.inputs.q.data) + (1 * 2 + 1) * 4 * 576 + head * 576;
    const int page = static_cast<const std::int32_t*>(c.inputs.block_table.data)[c.problem.cache.max_pages];
    const auto* k = static_cast<const std::uint16_t*>(c.inputs.kv_cache.data) + std::int64_t{page} * 64 * 576;
    for (int d = 0; d < 576; ++d) score += double{bf16_to_float(q[d])} * bf16_to_float(k[d]);
    EXPECT_NEAR(lse_at(run, 1, head, 1), score * c.problem.options.softmax_scale, 1e-4);
  }
}

// 6. Callers may want +inf instead, and get it from every kernel that writes a final lse: dense and sparse,
// split and not, also for the query tokens that a ragged request does not have.
TEST_P(Contracts, AnotherLseForEmptyRows) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int heads : {4, 16, 64, 128}) {
    for (const runtime::CaseSpec& spec :
         {runtime::CaseSpec{.query_tokens = 3, .heads = heads, .lengths = {0, 2, 3000}, .causal = true},
          {.query_tokens = 3, .heads = heads, .lengths = {5, 3000}, .ragged_tokens = {1, 3}},
          {.format = KvFormat::kFp8_656,
          .query_tokens = 3,
          .heads = heads,
          .lengths = {500, 3000},
          .sink = true,
          .sparse = true,
          .topk = 2000,
          .skipped_indices = 0.5}}) {
      RandomCase c = runtime::make_case(spec, 13);
      c.problem.options.empty_lse = kInfinity;
      expect_right(c, "+inf", kSomeRows);
      DecodeRun run = place(c, executor_);
      ASSERT_TRUE(run.run().ok());
      ASSERT_TRUE(run.fetch().ok());
      const auto* lse = static_cast<const float*>(run.lse().data);
      const auto count = std::count(lse, lse + run.lse().elements(), kInfinity);
      EXPECT_GE(count, heads) << to_string(c.problem);
      EXPECT_EQ(std::count(lse, lse + run.lse().elements(), -kInfinity), 0) << to_string(c.problem);
    }
  }
}

// 8. Pools beyond 2^31 elements work.
TEST_P(Contracts, OffsetsOf64Bits) {
  if (!on_gpu()) GTEST_SKIP() << "needs a device with 4.4 GB of memory to spare";
  const std::int64_t pages = (1LL << 31) / (64 * 576) + 100;
  Result<runtime::Buffer> pool = runtime::Buffer::allocate(executor_, pages * 64 * 576 * 2);
  if (!pool.ok()) GTEST_SKIP() << pool.status().message();
  for (int page_size : {64, 61}) {
    const RandomCase c = runtime::make_case({.page_size = page_size, .lengths = {150}}, 6);
    DecodeRun run = place(c, executor_);
    // The case's pages move to the end of the large pool.
    const std::int64_t page_bytes = page_size * 576 * 2;
    const std::int64_t small_pages = c.inputs.kv_cache.shape[0];
    const std::int64_t large_pages = pages * 64 / page_size;
    const std::int64_t first = large_pages - small_pages;
    ASSERT_TRUE(runtime::copy_to_device(static_cast<char*>(pool->data()) + first * page_bytes,
                                        c.inputs.kv_cache.data, small_pages * page_bytes, executor_)
                    .ok());
    std::vector<std::int32_t> table(c.problem.cache.max_pages);
    for (std::size_t i = 0; i < table.size(); ++i) {
      const std::int32_t page = static_cast<const std::int32_t*>(c.inputs.block_table.data)[i];
      table[i] = i * page_size < 150 ? static_cast<std::int32_t>(page + first) : page;
    }
    ASSERT_TRUE(runtime::copy_to_device(const_cast<void*>(run.inputs().block_table.data), table.data(),
                                        table.size() * 4, executor_)
                    .ok());
    run.inputs().kv_cache.data = pool->data();
    run.inputs().kv_cache.shape[0] = large_pages;
    ASSERT_TRUE(run.run().ok());
    ASSERT_TRUE(run.fetch().ok());
    const auto result = runtime::compare(c.problem, c.inputs, run.out(), run.lse());
    EXPECT_TRUE(result.ok()) << runtime::to_string(result);
  }
}

// 9. The same inputs give the same bits; with batch_invariant also among other requests.
TEST_P(Contracts, RerunsAreIdentical) {
  expect_same_bits({.query_tokens = 2, .heads = 32, .lengths = {3000, 1, 0, 64, 500}});
}

TEST_P(Contracts, BatchInvariance) {
  expect_batch_invariant(
      {.name = "batch", .heads = 16, .lengths = {5000, 64, 0, 2049, 300}, .batch_invariant = true});
  // More splits than a trip to memory merges, among more requests than would each have some parts.
  std::vector<int> lengths(40, 3);
  lengths[7] = 11000;
  expect_batch_invariant({.name = "large batch", .heads = 4, .lengths = lengths, .batch_invariant = true});
}

// 10. The attention sink.
TEST_P(Contracts, AttentionSink) {
  expect_right({.name = "sink", .heads = 16, .lengths = {0, 1, 100}, .sink = true});
  expect_right({.name = "sink with splits", .heads = 4, .lengths = {9000}, .sink = true});
}

// 11. Errors are values that name the argument.
TEST_P(Contracts, WrongArgumentsAreNamed) {
  const RandomCase c = runtime::make_case({.query_tokens = 2, .lengths = {100, 20}}, 9);
  using Change = std::function<void(DecodeInputs&, DecodeOutputs&)>;
  const std::pair<const char*, Change> changes[] = {
      {"q", [](auto& in, auto&) { in.q.rank = 3; }},
      {"q", [](auto& in, auto&) { in.q.shape[2] = 7; }},
      {"q", [](auto& in, auto&) { in.q.dtype = Dtype::kF16; }},
      {"q", [](auto& in, auto&) { in.q = {}; }},
      {"kv_cache", [](auto& in, auto&) { in.kv_cache.dtype = Dtype::kU8; }},
      {"kv_cache", [](auto& in, auto&) { in.kv_cache.shape[1] = 32; }},
      {"kv_cache", [](auto& in, auto&) { in.kv_cache.data = nullptr; }},
      {"block_table", [](auto& in, auto&) { in.block_table.dtype = Dtype::kF32; }},
      {"block_table", [](auto& in, auto&) { in.block_table.shape[1] += 1; }},
      {"cache_seqlens", [](auto& in, auto&) { in.cache_seqlens.shape[0] = 1; }},
      {"out", [](auto&, auto& out) { out.out.shape[3] = 576; }},
      {"lse", [](auto&, auto& out) { out.lse.shape[1] = 2; }},
      {"lse", [](auto&, auto& out) { out.lse.dtype = Dtype::kBF16; }},
      {"attn_sink", [](auto& in, auto&) { in.attn_sink = in.q; }},
      {"cu_seqlens_q", [](auto& in, auto&) { in.cu_seqlens_q = in.cache_seqlens; }},
      {"q",
       [](auto& in, auto&) {
         in.q.device = {DeviceType::kCuda, 7};
       }},
  };
  for (const auto& [name, change] : changes) {
    DecodeRun run = place(c, executor_);
    ASSERT_TRUE(run.plan().ok());
    change(run.inputs(), run.outputs());
    const Status status = run.decode();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(status.message().find(name), 0U) << status.message();
  }
}

TEST_P(Contracts, ImpossibleProblemsAreRefused) {
  const DecodeProblem good = runtime::make_case({.lengths = {100}}, 1).problem;
  ASSERT_TRUE(plan_bytes(good, executor_).ok());
  using Change = std::function<void(DecodeProblem&)>;
  const std::pair<const char*, Change> changes[] = {
      {"batch", [](auto& p) { p.query.batch = -1; }},
      {"s_q", [](auto& p) { p.query.tokens = 0; }},
      {"h_q", [](auto& p) { p.query.heads = 0; }},
      {"h_q", [](auto& p) { p.query.heads = 3, p.cache.heads = 2; }},
      {"dtype", [](auto& p) { p.cache.dtype = Dtype::kF32; }},
      {"v_dim", [](auto& p) { p.cache.v_dim = 1000; }},
      {"page_size", [](auto& p) { p.cache.page_size = 0; }},
      {"max_pages", [](auto& p) { p.cache.max_pages = -4; }},
      {"softmax_scale", [](auto& p) { p.options.softmax_scale = std::numeric_limits<float>::infinity(); }},
  };
  for (const auto& [name, change] : changes) {
    DecodeProblem problem = good;
    change(problem);
    const Status status = plan_bytes(problem, executor_).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(status.message().find(name), 0U) << status.message();
  }
  if (on_gpu()) {
    DecodeProblem problem = good;
    problem.cache.qk_dim = 100;
    problem.cache.v_dim = 100;
    const Status status = plan_bytes(problem, executor_).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("mla_64_pingpong: qk_dim/v_dim is 100/100"), std::string::npos)
        << status.message();
  }
  Executor unknown = executor_;
  unknown.kernel = "no such kernel";
  EXPECT_EQ(plan_bytes(good, unknown).status().code(), StatusCode::kUnsupported);
}

// 12. Accuracy: huge logits, and scales of either sign.
TEST_P(Contracts, HugeLogits) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (float scale : kHugeLogits) {
      expect_right({.name = "huge logits", .dtype = dtype, .lengths = {300, 5}, .logit_scale = scale});
    }
    expect_right({.name = "negative scale", .dtype = dtype, .lengths = {300, 5}, .logit_scale = -2.0F});
    expect_right({.name = "scale 0", .dtype = dtype, .lengths = {300, 5}, .logit_scale = 0.0F});
  }
}

TEST_P(Contracts, LeapingScores) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    for (int apart : {32, 64}) expect_right(leaping_scores(apart, format, {kLeapingTokens, kLeapingTokens}));
  }
}

TEST_P(Contracts, RisingAndFallingScores) {
  for (const auto& [name, steps] : hard_score_steps()) {
    for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
      for (int heads : {4, 32}) {
        expect_right({.name = name,
                      .dtype = dtype,
                      .heads = heads,
                      .lengths = {1500, 300},
                      .score_steps = steps,
                      .step_tokens = ScoreSteps::kTokens});
      }
    }
  }
}

// combine(): merging the halves of a context gives the whole; parts of lse -inf count for nothing.
TEST_P(Contracts, CombineMergesDisjointParts) {
  constexpr int kParts = 3, kBatch = 2, kTokens = 2, kHeads = 5, kDim = 37;
  constexpr int kRows = kBatch * kTokens * kHeads;
  std::vector<float> out(kParts * kRows * kDim), lse(kParts * kRows), sink(kHeads);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::sin(0.1F * static_cast<float>(i));
  for (std::size_t i = 0; i < lse.size(); ++i) lse[i] = 4 * std::cos(1.7F * static_cast<float>(i));
  for (int head = 0; head < kHeads; ++head) sink[head] = static_cast<float>(head) - 2;
  const float infinity = std::numeric_limits<float>::infinity();
  // Row (0, 0, 0): its second part is empty and holds NaN. Row (0, head 1, token 0): all parts are.
  lse[kRows] = -infinity;
  for (int d = 0; d < kDim; ++d) out[kRows * kDim + d] = NAN;
  for (int part = 0; part < kParts; ++part) lse[part * kRows + 1 * kTokens] = -infinity;

  const Device device = on_gpu() ? Device{DeviceType::kCuda, 0} : Device{};
  std::vector<runtime::Buffer> buffers;
  auto upload = [&](const std::vector<float>& values) {
    buffers.push_back(std::move(*runtime::Buffer::allocate(executor_, values.size() * 4)));
    EXPECT_TRUE(
        runtime::copy_to_device(buffers.back().data(), values.data(), values.size() * 4, executor_).ok());
    return buffers.back().data();
  };
  std::vector<float> merged(kRows * kDim, NAN), merged_lse(kRows, NAN);
  const ConstTensorView partial_out(upload(out), Dtype::kF32, {kParts, kBatch, kTokens, kHeads, kDim},
                                    device);
  const ConstTensorView partial_lse(upload(lse), Dtype::kF32, {kParts, kBatch, kHeads, kTokens}, device);
  const ConstTensorView sinks(upload(sink), Dtype::kF32, {kHeads}, device);
  const TensorView result(upload(merged), Dtype::kF32, {kBatch, kTokens, kHeads, kDim}, device);
  const TensorView result_lse(upload(merged_lse), Dtype::kF32, {kBatch, kHeads, kTokens}, device);
  const Status status = combine(partial_out, partial_lse, sinks, result, result_lse, executor_);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(runtime::copy_to_host(merged.data(), result.data, merged.size() * 4, executor_).ok());
  ASSERT_TRUE(
      runtime::copy_to_host(merged_lse.data(), result_lse.data, merged_lse.size() * 4, executor_).ok());

  for (int b = 0; b < kBatch; ++b) {
    for (int t = 0; t < kTokens; ++t) {
      for (int h = 0; h < kHeads; ++h) {
        const int lse_row = (b * kHeads + h) * kTokens + t, out_row = (b * kTokens + t) * kHeads + h;
        double sum = 0;
        for (int part = 0; part < kParts; ++part) sum += std::exp(double{lse[part * kRows + lse_row]});
        if (sum == 0) {
          EXPECT_EQ(merged_lse[lse_row], -infinity);
        } else {
          EXPECT_NEAR(merged_lse[lse_row], std::log(sum), 1e-5);
        }
        for (int d = 0; d < kDim; ++d) {
          double expected = 0;
          for (int part = 0; part < kParts && sum > 0; ++part) {
            const double weight = std::exp(double{lse[part * kRows + lse_row]}) / sum;
            if (weight > 0) expected += weight * out[(part * kRows + out_row) * kDim + d];
          }
          if (sum > 0) expected *= sum / (sum + std::exp(double{sink[h]}));
          ASSERT_NEAR(merged[out_row * kDim + d], expected, 1e-5) << b << " " << t << " " << h << " " << d;
        }
      }
    }
  }
  // A shape that does not fit is named.
  TensorView wrong = result;
  wrong.shape[2] = 4;
  const Status refused = combine(partial_out, partial_lse, sinks, wrong, result_lse, executor_);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message().find("out"), 0U) << refused.message();
}

}  // namespace
}  // namespace flashlatent
