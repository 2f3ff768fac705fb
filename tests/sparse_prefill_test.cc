// Contracts of sparse prefill from contiguous rows.
#include <span>

#include "prefill_rows.h"
#include "runtime/timing.h"

namespace flashlatent {
namespace {

INSTANTIATE_TEST_SUITE_P(Backends, SparsePrefill, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         [](const auto& info) { return to_string(info.param); });

TEST_P(SparsePrefill, ContiguousRows) {
  for (int heads : {1, 9, 64, 128}) {
    for (int topk : {65, 77, 128}) {
      for (int dim : {512, 576}) {
        Shape shape{.heads = heads, .dim = dim, .topk = topk};
        shape.lengths = topk == 77;
        shape.sink = topk != 65;
        const Rows rows(shape);
        check(rows.inputs, rows.options);
      }
    }
  }
  const Rows half({.heads = 12, .dtype = Dtype::kF16, .lengths = true, .sink = true});
  check(half.inputs, half.options);
}

// Several items a CTA, of one row tile, two, three and four.
TEST_P(SparsePrefill, ManyQueryTokens) {
  for (int heads : {4, 16, 40, 128, 136, 200}) {
    for (int dim : {512, 576}) {
      Shape shape{.s_q = heads > 40 ? 150 : 400, .heads = heads, .dim = dim, .topk = 130};
      shape.lengths = heads != 40;
      const Rows rows(shape);
      check(rows.inputs, rows.options, kSomePrefillRows);
    }
  }
  const Rows few({.s_q = 3000, .heads = 1, .topk = 3, .lengths = true});
  check(few.inputs, few.options);
}

TEST_P(SparsePrefill, FewQueryTokensOfManyTokens) {
  // On the CPU more threads than query tokens: the largest score is that of all parts.
  const Rows rows({.s_q = 1, .heads = 3, .s_kv = 3000, .topk = 2500, .sink = true});
  if (!on_gpu()) executor_.threads = 8;
  check(rows.inputs, rows.options);
  const Result<PrefillRun> results = run(rows.inputs, rows.options);
  ASSERT_TRUE(results.ok());
  for (int h = 0; h < 3; ++h) EXPECT_NEAR(max_logit_of(*results, h), rows.largest(0, h), 1e-4);
}

TEST_P(SparsePrefill, LargestScoresAndEmptyRows) {
  const char* const of_cpu[] = {"", "reference"};
  const char* const of_gpu[] = {"", "mla_16", "mla_64_pingpong", "mla_64_roles"};
  for (const char* kernel : on_gpu() ? std::span<const char* const>(of_gpu) : of_cpu) {
    const Rows rows({.s_q = 6, .lengths = true, .sink = true});
    executor_.kernel = kernel;
    const Result<PrefillRun> results = run(rows.inputs, rows.options);
    ASSERT_TRUE(results.ok()) << results.status().message();
    for (int t = 0; t < 6; ++t) {
      for (int h = 0; h < 9; ++h) {
        const int row = t * 9 + h;
        const double largest = rows.largest(t, h);
        const bool empty = largest == -kInfinity;
        EXPECT_EQ(empty, t == 1 || t == 3 || t == 4) << t;  // of the fifth one the only index names nothing
        if (!empty) {
          EXPECT_NEAR(max_logit_of(*results, row), largest, 1e-4) << kernel;
          EXPECT_GE(lse_of(*results, row), max_logit_of(*results, row));
          continue;
        }
        EXPECT_EQ(max_logit_of(*results, row), -kInfinity) << kernel;
        EXPECT_EQ(lse_of(*results, row), -kInfinity) << kernel;
        for (int d = 0; d < 512; ++d) ASSERT_EQ(out_of(*results, row * 512 + d), 0) << kernel;
      }
    }
  }
}

// A base that stays behind the scores is not what is told, nor one of another block or warpgroup.
TEST_P(SparsePrefill, LargestScoresThatLeap) {
  for (int heads : {8, 64, 128}) {
    for (float scale : {1.0F, -1.0F, 40.0F, 0.0F}) {
      const Rows rows({.s_q = 4, .heads = heads, .s_kv = 900, .topk = 700});
      SparsePrefillOptions options = rows.options;
      options.softmax_scale *= scale;
      check(rows.inputs, options);
    }
  }
}

TEST_P(SparsePrefill, EveryKernelThatTakesIt) {
  int ran = 0;
  for (int heads : {7, 16, 70, 128}) {
    for (int dim : {512, 576}) {
      for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
        Shape shape{.s_q = 300, .heads = heads, .dim = dim, .s_kv = 400, .topk = 150, .dtype = dtype};
        shape.lengths = shape.sink = heads != 70;
        if (!on_gpu()) shape.s_q = 3;
        const Rows rows(shape);
        for (const KernelInfo& kernel : kernels()) {
          if (kernel.backend != GetParam()) continue;
          executor_.kernel = kernel.name;
          if (!takes(rows.inputs, rows.options)) continue;
          ++ran;
          check(rows.inputs, rows.options, on_gpu() ? kSomePrefillRows : runtime::RowSample{});
        }
      }
    }
  }
  // mla_16 of few heads, mla_64_roles, mla_64_pingpong; cpu_dense and reference.
  EXPECT_EQ(ran, on_gpu() ? 8 + 16 + 16 : 32);
}

TEST_P(SparsePrefill, SameBitsEachTime) {
  for (int heads : {8, 64, 128}) {
    const Rows rows({.s_q = 200, .heads = heads, .s_kv = 500, .topk = 300, .lengths = true});
    const Result<PrefillRun> first = run(rows.inputs, rows.options), again = run(rows.inputs, rows.options);
    ASSERT_TRUE(first.ok() && again.ok());
    EXPECT_EQ(first->bytes(), again->bytes());
  }
}

TEST_P(SparsePrefill, LengthsOutOfRangeAreClamped) {
  Rows rows({.lengths = true});
  rows.lengths() = {-5, 1000, 77, kLeast, kMost};
  SparsePrefillInputs all = rows.inputs;
  const std::int32_t clamped[] = {0, 77, 77, 0, 77};
  all.topk_length.data = clamped;
  const Result<PrefillRun> a = run(rows.inputs, rows.options), b = run(all, rows.options);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->bytes(), b->bytes());
}

TEST_P(SparsePrefill, NoQueryTokensAndNoIndices) {
  const Rows none({.s_q = 0});
  check(none.inputs, none.options);
  const Rows nothing({.s_q = 3, .topk = 0});
  check(nothing.inputs, nothing.options);
}

TEST_P(SparsePrefill, NanInLiveRowsIsSeen) {
  for (int heads : {2, 64, 128}) {
    const Rows rows({.s_q = 1, .heads = heads, .s_kv = 2, .topk = 1});
    const std::int32_t poison = 1;  // s_kv / 2
    SparsePrefillInputs inputs = rows.inputs;
    inputs.indices = {&poison, Dtype::kI32, {1, 1, 1}};
    const Result<PrefillRun> results = run(inputs, rows.options, 0);
    ASSERT_TRUE(results.ok());
    for (int h = 0; h < heads; ++h) {
      EXPECT_TRUE(std::isnan(max_logit_of(*results, h)));
      EXPECT_TRUE(std::isnan(lse_of(*results, h)));
      EXPECT_TRUE(std::isnan(to_float(out_of(*results, h * 512), Dtype::kBF16)));
    }
  }
}

// On CUDA there is no plan: a call is one launch, which needs no memory and which a graph can capture.
TEST_P(SparsePrefill, CudaNeedsNoWorkspaceAndIsCaptured) {
  if (!on_gpu()) GTEST_SKIP() << "graphs are CUDA's";
  const Rows rows({.s_q = 150, .heads = 128, .lengths = true});
  Result<runtime::Stream> stream = runtime::Stream::create(executor_);
  ASSERT_TRUE(stream.ok());
  executor_.stream = stream->get();
  Result<PrefillRun> run = PrefillRun::create(rows.inputs, rows.options, executor_);
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->workspace().bytes, 0U);
  const auto timed = runtime::time_calls([&] { return run->run(); },
                                         {.repeats = 1, .graph = true, .graph_calls = 2}, executor_);
  ASSERT_TRUE(timed.ok()) << timed.status().message();
  ASSERT_TRUE(run->fetch().ok());
  const auto compared = runtime::compare_prefill(rows.inputs, rows.options, run->results());
  ASSERT_TRUE(compared.ok());
  EXPECT_TRUE(compared->ok()) << runtime::to_string(*compared);
}

// Rows beyond 2^31 elements.
TEST_P(SparsePrefill, OffsetsOf64Bits) {
  if (!on_gpu()) GTEST_SKIP() << "needs a device with 4.4 GB of memory to spare";
  for (int heads : {16, 64, 128}) {
    const Rows rows({.s_q = 3, .heads = heads});
    Result<PrefillRun> run = PrefillRun::create(rows.inputs, rows.options, executor_);
    ASSERT_TRUE(run.ok());
    const std::int64_t stride = rows.inputs.kv.strides[0], s_kv = rows.inputs.kv.shape[0];
    const std::int64_t first = (1LL << 31) / stride + 100;
    Result<runtime::Buffer> pool = runtime::Buffer::allocate(executor_, (first + s_kv) * stride * 2);
    if (!pool.ok()) GTEST_SKIP() << pool.status().message();
    auto* const begin = static_cast<std::uint16_t*>(pool->data()) + first * stride;
    const std::int64_t elements = (s_kv - 1) * stride + 576;
    ASSERT_TRUE(runtime::copy_to_device(begin, rows.inputs.kv.data, elements * 2, executor_).ok());
    const auto* indices = static_cast<const std::int32_t*>(rows.inputs.indices.data);
    std::vector<std::int32_t> moved(indices, indices + rows.inputs.indices.elements());
    for (std::int32_t& index : moved) {
      if (index >= 0 && index < s_kv) index += static_cast<std::int32_t>(first);
      if (index == s_kv) index = kMost;
    }
    ASSERT_TRUE(runtime::copy_to_device(const_cast<void*>(run->inputs().indices.data), moved.data(),
                                        moved.size() * 4, executor_)
                    .ok());
    run->inputs().kv.data = pool->data();
    run->inputs().kv.shape[0] = first + s_kv;
    ASSERT_TRUE(run->run().ok());
    ASSERT_TRUE(run->fetch().ok());
    const auto compared = runtime::compare_prefill(rows.inputs, rows.options, run->results());
    ASSERT_TRUE(compared.ok());
    EXPECT_TRUE(compared->ok()) << runtime::to_string(*compared);
  }
}

TEST_P(SparsePrefill, WhatNoKernelTakesIsRefusedWithReasons) {
  if (!on_gpu()) GTEST_SKIP() << "the CPU takes everything";
  const Rows rows({.dim = 576});
  SparsePrefillOptions options = rows.options;
  options.v_dim = 256;
  const Status status = run(rows.inputs, options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("mla_64_pingpong: qk_dim/v_dim is 576/256; "), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("gqa_16: it does not do sparse_prefill"), std::string::npos);
}

TEST(SparsePrefillArguments, WrongTensorsAreNamed) {
  const Rows rows({.sink = true});
  const Executor cpu;
  auto refused = [&](auto change, const char* words) {
    SparsePrefillInputs inputs = rows.inputs;
    SparsePrefillOptions options = rows.options;
    change(inputs, options);
    const Status status = sparse_prefill_workspace_bytes(inputs, options, cpu).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  using Inputs = SparsePrefillInputs;
  using Options = SparsePrefillOptions;
  refused([](Inputs& i, Options&) { i.q = {}; }, "q is missing; expected bf16 or fp16 (s_q, h_q, d)");
  refused([](Inputs& i, Options&) { i.q.dtype = Dtype::kF32; }, "q is fp32 (5, 9, 576)");
  refused([](Inputs& i, Options&) { i.kv = {}; }, "kv is missing; expected rows (s_kv, 1, d)");
  refused([](Inputs& i, Options&) { i.kv.shape[1] = 2; }, "kv is bf16 (100, 2, 576)");
  refused([](Inputs& i, Options&) { i.kv.dtype = Dtype::kF16; }, "kv is fp16");
  refused([](Inputs& i, Options&) { i.kv.shape[0] = 1LL << 31; }, "kv is bf16 (2147483648, 1, 576)");
  auto of_bytes = [](Inputs& i, std::int64_t last) { i.kv = {i.kv.data, Dtype::kU8, {5, 2, 1, last}}; };
  refused([&](Inputs& i, Options&) { of_bytes(i, 577); }, "584), which is fp8_584");
  refused(
      [](Inputs& i, Options&) {
        i.kv = {i.kv.data, Dtype::kU8, {10, 1, 576}};
      },
      "kv is uint8 (10, 1, 576) strides (576, 576, 1) on cpu; rows (s_kv, 1, d) of q's dtype, or");
  refused([](Inputs& i, Options&) { i.extra_kv_cache = i.kv, i.extra_indices = i.indices; },
          "; expected a paged cache, (pages, page_size, 1, d)");
  refused(
      [&](Inputs& i, Options&) {
        of_bytes(i, 576);
        i.q.dtype = Dtype::kF16;
      },
      "q is fp16 (5, 9, 576) strides (5256, 584, 1) on cpu; with an e4m3 cache bf16 and e4m3 (uint8) are "
      "accepted");
  refused([](Inputs& i, Options&) { i.q.dtype = Dtype::kU8; },
          "; with rows (s_kv, 1, d) bf16 and fp16 are accepted");
  refused([](Inputs& i, Options&) { i.q_scale = i.attn_sink; }, "q_scale is");
  refused([](Inputs&, Options& o) { o.products = Products::kFp8; }, "products is fp8");
  refused([](Inputs& i, Options&) { i.kv.strides[2] = 2; }, "kv is");
  refused([](Inputs& i, Options&) { i.indices = {}; }, "indices is missing");
  refused([](Inputs& i, Options&) { i.indices.shape[0] = 4; }, "indices is int32 (4, 1, 77)");
  refused(
      [](Inputs& i, Options&) {
        i.topk_length = {i.indices.data, Dtype::kI32, {4}};
      },
      "topk_length is int32 (4)");
  refused([](Inputs& i, Options&) { i.attn_sink.shape[0] = 8; }, "attn_sink is fp32 (8)");
  refused([](Inputs& i, Options&) { i.extra_indices = i.indices; }, "extra_kv_cache is missing");
  refused([](Inputs& i, Options&) { i.extra_kv_cache = i.kv; }, "extra_indices is missing");
  refused([](Inputs&, Options& o) { o.softmax_scale = std::nanf(""); }, "softmax_scale is nan");
  refused([](Inputs&, Options& o) { o.v_dim = 577; }, "v_dim is 577");
  refused([](Inputs& i, Options&) { i.q.shape[0] = i.indices.shape[0] = (1 << 20) + 1; },
          "s_q (query tokens) is 1048577; it must be from 0 to 1048576");

  Result<PrefillRun> run = PrefillRun::create(rows.inputs, rows.options, cpu);
  ASSERT_TRUE(run.ok());
  SparsePrefillOutputs outputs = run->outputs();
  EXPECT_EQ(sparse_prefill(rows.inputs, outputs, rows.options, {}, cpu).code(), StatusCode::kExhausted);
  outputs.max_logits.shape[1] = 8;
  const Status status = sparse_prefill(rows.inputs, outputs, rows.options, run->workspace(), cpu);
  EXPECT_NE(status.message().find("max_logits is fp32 (5, 8)"), std::string::npos) << status.message();
  SparsePrefillOptions options = rows.options;
  options.max_logits = false;
  const Status unwanted = sparse_prefill(rows.inputs, run->outputs(), options, run->workspace(), cpu);
  EXPECT_NE(unwanted.message().find("but the call is one without largest scores"), std::string::npos)
      << unwanted.message();
}

}  // namespace
}  // namespace flashlatent
