// Contracts of sparse prefill from paged caches, of two caches in one softmax, and of odd shapes.
#include <string_view>

#include "dispatch/select.h"
#include "dispatch/sparse_prefill.h"
#include "prefill_rows.h"
#include "runtime/random_case.h"
#include "runtime/timing.h"

namespace flashlatent {
namespace {

class PrefillPages : public SparsePrefill {
 protected:
  /// Checks the call by each kernel that takes it; returns how many do.
  int check_by_each_kernel(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options) {
    int ran = 0;
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.backend != GetParam()) continue;
      executor_.kernel = kernel.name;
      if (!takes(inputs, options)) continue;
      ++ran;
      check(inputs, options);
    }
    return ran;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, PrefillPages, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         [](const auto& info) { return to_string(info.param); });

constexpr std::pair<KvFormat, int> kFormats[] = {
    {KvFormat::kPlain, 576},   {KvFormat::kPlain, 512}, {KvFormat::kFp8_656, 576}, {KvFormat::kFp8_656, 512},
    {KvFormat::kFp8_584, 512}, {KvFormat::kE4m3, 576},  {KvFormat::kE4m3, 512}};

/// Odd pages; a query token has nothing in one cache, or the other, or both.
runtime::CaseSpec pages_of(KvFormat format, int qk_dim, int heads, bool extra) {
  runtime::CaseSpec spec{.format = format, .heads = heads, .lengths = {100, 0, 70, 300}};
  spec.qk_dim = qk_dim;
  spec.page_size = 3;
  spec.scales = format == KvFormat::kE4m3 ? 1 : 0;
  spec.sparse = spec.sink = spec.strided = true;
  spec.topk = 77;
  spec.topk_lengths = {77, 5, 0, 70};
  spec.skipped_indices = 0.3;
  if (extra) {
    spec.extra_lengths = {90, 100, 0, 20};
    spec.extra_indexed = true;
    spec.extra_topk = 65;
    spec.extra_topk_lengths = {0, 65, 0, 33};
    spec.extra_page_size = 2;
  }
  return spec;
}

TEST_P(PrefillPages, PagedCaches) {
  for (auto [format, qk_dim] : kFormats) {
    for (int heads : {12, 64, 128}) {
      for (bool extra : {false, true}) {
        const runtime::RandomCase c = runtime::make_case(pages_of(format, qk_dim, heads, extra), 1);
        EXPECT_EQ(runtime::prefill_inputs(c.inputs).kv_scale.data, c.inputs.kv_scale.data);
        check(runtime::prefill_inputs(c.inputs), options_of(c.problem.options.softmax_scale));
      }
    }
  }
}

// Two caches of fp16, too, and rows beside pages: each kernel that says it takes them.
TEST_P(PrefillPages, EveryKernelThatTakesPagesAndTwoCaches) {
  int ran = 0;
  for (auto [format, qk_dim] : kFormats) {
    for (int heads : on_gpu() ? std::vector{7, 16, 70, 128} : std::vector{7, 70}) {
      for (bool extra : {false, true}) {
        runtime::CaseSpec spec = pages_of(format, qk_dim, heads, extra);
        if (format == KvFormat::kPlain && heads != 7) spec.dtype = Dtype::kF16;
        if (format == KvFormat::kPlain && heads == 16) spec.page_size = 1;  // contiguous rows
        const runtime::RandomCase c = runtime::make_case(spec, 2);
        const SparsePrefillInputs inputs = runtime::prefill_inputs(c.inputs);
        const SparsePrefillOptions options = options_of(c.problem.options.softmax_scale);
        ran += check_by_each_kernel(inputs, options);
      }
    }
  }
  // mla_64_pingpong all but fp8_656 and e4m3 of 576 with an extra cache; mla_16_transposed those, fp8_584 and
  // e4m3 of 512 of few heads; mla_64_roles one plain cache, mla_16 of few heads; fp8_64 and, of few heads,
  // fp8_32 fp8_656 and e4m3 of 576 without an extra cache. cpu_dense and reference all.
  EXPECT_EQ(ran, on_gpu() ? 48 + 8 + 4 + 4 + 8 + 4 + 8 + 4 : 56);
}

SparsePrefillOptions without_max_logits(const DecodeProblem& problem) {
  SparsePrefillOptions options = runtime::prefill_options(problem);
  options.max_logits = false;
  return options;
}

// More kernels take such calls, by name and unasked.
TEST_P(PrefillPages, WithoutLargestScores) {
  int ran = 0;
  for (auto [format, qk_dim] : kFormats) {
    for (int heads : on_gpu() ? std::vector{7, 16, 70, 128} : std::vector{7, 70}) {
      for (bool extra : {false, true}) {
        const runtime::RandomCase c = runtime::make_case(pages_of(format, qk_dim, heads, extra), 6);
        const SparsePrefillInputs inputs = runtime::prefill_inputs(c.inputs);
        const SparsePrefillOptions options = without_max_logits(c.problem);
        executor_.kernel = "";
        check(inputs, options);
        ran += check_by_each_kernel(inputs, options);
      }
    }
  }
  // Those above, and of fp8_584 fp8_64 and, of few heads, fp8_32.
  EXPECT_EQ(ran, on_gpu() ? 48 + 8 + 4 + 4 + 8 + 4 + 8 + 4 + 8 + 4 : 56);
}

// Products in e4m3, of e4m3 queries with each kind of scale and of bf16 queries.
TEST_P(PrefillPages, ProductsOfE4m3) {
  for (int qk_dim : {576, 512}) {
    for (int heads : {9, 64, 130}) {
      for (int scales : {-1, 0, 1, heads}) {
        runtime::CaseSpec spec = pages_of(KvFormat::kE4m3, qk_dim, heads, false);
        spec.products = Products::kFp8;
        spec.e4m3_query = scales >= 0;
        spec.query_scales = std::max(scales, 0);
        const runtime::RandomCase c = runtime::make_case(spec, 7);
        const SparsePrefillInputs inputs = runtime::prefill_inputs(c.inputs);
        EXPECT_EQ(inputs.q_scale.data, c.inputs.q_scale.data);
        check(inputs, runtime::prefill_options(c.problem));
        check(inputs, without_max_logits(c.problem));
      }
    }
  }
}

// Any number of heads, whether or not it fills row tiles of 16 or 64.
TEST_P(PrefillPages, AnyHeads) {
  const std::vector few{1, 17, 65, 193};
  const std::vector many{1, 2, 3, 5, 15, 17, 31, 33, 63, 65, 95, 127, 129, 191, 193, 255, 256};
  for (int heads : on_gpu() ? many : few) {
    for (int topk : {1, 65, 77}) {
      for (int dim : {512, 576}) {
        const Rows rows({.s_q = 3, .heads = heads, .dim = dim, .topk = topk, .sink = true});
        check(rows.inputs, rows.options);
      }
    }
    for (bool extra : {false, true}) {
      const runtime::RandomCase c = runtime::make_case(pages_of(KvFormat::kE4m3, 576, heads, extra), heads);
      check(runtime::prefill_inputs(c.inputs), options_of(c.problem.options.softmax_scale));
    }
    const runtime::RandomCase c = runtime::make_case(pages_of(KvFormat::kPlain, 576, heads, true), heads);
    check(runtime::prefill_inputs(c.inputs), options_of(c.problem.options.softmax_scale));
  }
}

// Without a row in any cache every index is past the end.
TEST_P(PrefillPages, CachesWithoutRows) {
  for (auto [format, qk_dim] : kFormats) {
    for (int heads : {8, 128}) {
      const runtime::RandomCase c = runtime::make_case(pages_of(format, qk_dim, heads, true), 3);
      SparsePrefillInputs inputs = runtime::prefill_inputs(c.inputs);
      const SparsePrefillOptions options = options_of(c.problem.options.softmax_scale);
      inputs.kv.shape[0] = 0;
      check(inputs, options);  // the extra one has some
      inputs.extra_kv_cache.shape[0] = 0;
      check(inputs, options);
      inputs.extra_kv_cache = inputs.extra_indices = inputs.extra_topk_length = {};
      check(inputs, options);
      inputs.indices.shape[2] = 0;
      inputs.topk_length = {};
      check(inputs, options);
    }
  }
  Rows rows({});
  rows.inputs.kv.shape[0] = 0;
  const Result<PrefillRun> results = run(rows.inputs, rows.options);
  ASSERT_TRUE(results.ok()) << results.status().message();
  for (int row = 0; row < 5 * 9; ++row) {
    EXPECT_EQ(max_logit_of(*results, row), -kInfinity);
    EXPECT_EQ(lse_of(*results, row), -kInfinity);
    EXPECT_EQ(out_of(*results, row * 512), 0);
  }
}

// `out` may be a slice of something larger, whose rest stays as it is.
TEST_P(PrefillPages, OutputsOfAnyStride) {
  constexpr int kTokens = 5, kGap = 8;  // elements: 16 bytes
  for (int heads : {4, 9, 70, 128}) {
    for (int gap : {kGap, kGap / 4}) {  // of 16 bytes and of 4
      const Rows rows({.s_q = kTokens, .heads = heads, .sink = true});
      Result<PrefillRun> run = PrefillRun::create(rows.inputs, rows.options, executor_);
      ASSERT_TRUE(run.ok()) << run.status().message();
      const std::int64_t row = 512 + gap, token = (heads + 1) * row, elements = kTokens * token;
      Result<runtime::Buffer> larger = runtime::Buffer::allocate(executor_, elements * 2);
      ASSERT_TRUE(larger.ok());
      ASSERT_TRUE(runtime::fill(larger->data(), 0xAB, elements * 2, executor_).ok());
      TensorView& out = run->outputs().out;
      out.data = larger->data();
      out.strides = {token, row, 1};
      std::vector<std::uint16_t> bits(elements);
      for (const Status& status :
           {run->run(), run->fetch(),
            runtime::copy_to_host(bits.data(), larger->data(), elements * 2, executor_)}) {
        ASSERT_TRUE(status.ok()) << status.message();
      }
      SparsePrefillOutputs results = run->results();
      results.out.data = bits.data();
      results.out.strides = out.strides;
      const auto compared = runtime::compare_prefill(rows.inputs, rows.options, results);
      ASSERT_TRUE(compared.ok()) << compared.status().message();
      EXPECT_TRUE(compared->ok()) << heads << " heads: " << runtime::to_string(*compared);
      for (std::int64_t i = 0; i < elements; ++i) {
        const bool inside = i % token / row < heads && i % row < 512;
        ASSERT_TRUE(inside || bits[i] == 0xABAB) << "element " << i;
      }
    }
  }
}

// A call is one launch without workspace, which a graph captures, whichever caches there are.
TEST_P(PrefillPages, CudaCapturesEachFormat) {
  if (!on_gpu()) GTEST_SKIP() << "graphs are CUDA's";
  Result<runtime::Stream> stream = runtime::Stream::create(executor_);
  ASSERT_TRUE(stream.ok());
  executor_.stream = stream->get();
  for (auto [format, qk_dim] : kFormats) {
    for (bool extra : {false, true}) {
      const runtime::RandomCase c = runtime::make_case(pages_of(format, qk_dim, 80, extra), 4);
      const SparsePrefillInputs inputs = runtime::prefill_inputs(c.inputs);
      const SparsePrefillOptions options = options_of(c.problem.options.softmax_scale);
      Result<PrefillRun> run = PrefillRun::create(inputs, options, executor_);
      ASSERT_TRUE(run.ok()) << run.status().message();
      EXPECT_EQ(run->workspace().bytes, 0U);
      const auto timed = runtime::time_calls([&] { return run->run(); },
                                             {.repeats = 1, .graph = true, .graph_calls = 2}, executor_);
      ASSERT_TRUE(timed.ok()) << timed.status().message();
      ASSERT_TRUE(run->fetch().ok());
      const auto compared = runtime::compare_prefill(inputs, options, run->results());
      ASSERT_TRUE(compared.ok());
      EXPECT_TRUE(compared->ok()) << runtime::to_string(*compared);
    }
  }
}

// What CUDA's kernels say they take, in any build.
std::vector<Candidate> of_cuda(const runtime::CaseSpec& spec, Purpose purpose = Purpose::kTurnsMaxLogits) {
  Executor cuda;
  cuda.backend = Backend::kCuda;
  Result<std::vector<Candidate>> list = candidates(runtime::problem_of(spec), cuda, 132, purpose);
  EXPECT_TRUE(list.ok()) << list.status().message();
  return list.ok() ? std::move(*list) : std::vector<Candidate>{};
}

TEST(PrefillCandidates, SomeKernelTakesEachFormat) {
  for (auto [format, qk_dim] : kFormats) {
    for (int heads : {1, 9, 17, 64, 128, 255}) {
      for (bool extra : {false, true}) {
        std::string reasons;
        bool taken = false;
        for (const Candidate& candidate : of_cuda(pages_of(format, qk_dim, heads, extra))) {
          taken = taken || candidate.reason.empty();
          reasons += candidate.kernel->name + (": " + candidate.reason) + "\n";
        }
        EXPECT_TRUE(taken) << to_string(format) << " " << qk_dim << ", " << heads << " heads: " << reasons;
      }
    }
  }
}

// A reason is true: what it says is accepted is what the call has not.
TEST(PrefillCandidates, ReasonsSayWhatIsTaken) {
  for (KvFormat format : {KvFormat::kFp8_656, KvFormat::kE4m3}) {
    for (auto [purpose, words] :
         {std::pair{Purpose::kTurnsMaxLogits, "with an extra cache 512/512 is accepted"},
          {Purpose::kDecode, "with an extra cache or a window 512/512 is accepted"}}) {
      for (const Candidate& candidate : of_cuda(pages_of(format, 576, 64, true), purpose)) {
        if (std::string_view(candidate.kernel->name) != "mla_64_pingpong") continue;
        EXPECT_EQ(candidate.reason, std::string("qk_dim/v_dim is 576/512; ") + words);
      }
    }
  }
}

// Kernels of lists do not find the largest scores, and say so.
TEST(PrefillCandidates, LargestScoresOfLists) {
  const runtime::CaseSpec spec = pages_of(KvFormat::kFp8_584, 512, 64, true);
  const auto reason = [&](Purpose purpose) {
    for (const Candidate& candidate : of_cuda(spec, purpose)) {
      if (std::string_view(candidate.kernel->name) == "fp8_64") return candidate.reason;
    }
    return std::string("there is no such kernel");
  };
  EXPECT_EQ(reason(Purpose::kTurns), "");
  EXPECT_EQ(reason(Purpose::kTurnsMaxLogits),
            "max_logits are wanted; of the fp8_584 cache this kernel takes calls without");
}

// A kernel that multiplies in bf16 alone would take e4m3 queries for bf16.
TEST(PrefillCandidates, ProductsOfE4m3) {
  for (int qk_dim : {576, 512}) {
    for (int heads : {8, 32, 64, 200}) {
      for (bool e4m3_query : {true, false}) {
        runtime::CaseSpec spec = pages_of(KvFormat::kE4m3, qk_dim, heads, false);
        spec.products = Products::kFp8;
        spec.e4m3_query = e4m3_query;
        bool taken = false;
        for (const Candidate& candidate : of_cuda(spec)) {
          if (!candidate.reason.empty()) continue;
          const std::string_view name = candidate.kernel->name;
          EXPECT_TRUE(name == "mla_64_e4m3" || (name == "fp8_32" && qk_dim == 576 && heads <= 32)) << name;
          taken = true;
        }
        EXPECT_TRUE(taken) << qk_dim << ", " << heads << " heads";
      }
    }
  }
}

// mla_64_pingpong stands in for mla_64_roles where that cannot read q or write out.
TEST(PrefillCandidates, TheSubstituteTakesWhatItStandsInFor) {
  int taken = 0;
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (int qk_dim : {576, 512}) {
      for (int heads : {7, 64, 128, 255}) {
        runtime::CaseSpec spec = pages_of(KvFormat::kPlain, qk_dim, heads, false);
        spec.dtype = dtype;
        bool roles = false, pingpong = false;
        for (const Candidate& candidate : of_cuda(spec)) {
          const std::string_view name = candidate.kernel->name;
          roles = roles || (name == "mla_64_roles" && candidate.reason.empty());
          pingpong = pingpong || (name == "mla_64_pingpong" && candidate.reason.empty());
        }
        EXPECT_TRUE(!roles || pingpong) << qk_dim << ", " << heads << " heads";
        taken += roles;
      }
    }
  }
  EXPECT_EQ(taken, 16);
}

}  // namespace
}  // namespace flashlatent
