// A query in two parts, q and q_rope: the bits of one tensor, on every backend and by every kernel.
#include <cstring>
#include <functional>

#include "contracts.h"
#include "runtime/prefill_run.h"
#include "runtime/split_query.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::PrefillRun;
using runtime::RandomCase;

class QueryParts : public Contracts {
 protected:
  /// Calls `test` for every kernel that should take the case, by its name; on the CPU once.
  template <class Test>
  void by_every_kernel(const CaseSpec& spec, Test test) {
    if (!on_gpu()) return test(spec);
    int kernels_run = 0;
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.backend != Backend::kCuda) continue;
      executor_.kernel = kernel.name;
      if (should_take(kernel.name, runtime::problem_of(spec)) && taken(spec)) {
        ++kernels_run;
        CaseSpec of = spec;
        of.name += " by " + std::string(kernel.name);
        test(of);
      }
      executor_.kernel = "";
    }
    EXPECT_GT(kernels_run, 0) << spec.name;
  }

  struct Bytes {
    std::vector<std::uint8_t> out, lse;
    bool operator==(const Bytes&) const = default;
  };
  Bytes run(const DecodeProblem& problem, const DecodeInputs& inputs) {
    Result<DecodeRun> made = DecodeRun::create(problem, inputs, executor_);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (!made.ok()) return {};
    for (const Status& status : {made->run(), made->fetch()}) EXPECT_TRUE(status.ok()) << status.message();
    return {made->out_bytes(), made->lse_bytes()};
  }

  /// Right, and both forms have the same bits.
  void check(const CaseSpec& spec, runtime::RowSample sample = {}) {
    by_every_kernel(spec, [&](const CaseSpec& of) {
      RandomCase made = case_of(of, 5);
      const Bytes one = run(made.problem, made.inputs);
      const DecodeInputs contiguous = runtime::split_query(made, false);
      const DecodeInputs as_engines = runtime::split_query(made, true);
      EXPECT_EQ(as_engines.q.shape[as_engines.q.rank - 1], 512);
      EXPECT_TRUE(run(made.problem, contiguous) == one) << of.name << " " << to_string(made.problem);
      EXPECT_TRUE(run(made.problem, as_engines) == one) << of.name << " " << to_string(made.problem);
      made.inputs = as_engines;
      expect_right(made, of.name, sample);
    });
  }
};

const std::vector<int> kLengths = {0, 1, 63, 64, 65, 700};

TEST_P(QueryParts, Dense) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (int heads : {1, 12, 16, 24, 64, 80, 128}) {
      check({.name = "dense", .dtype = dtype, .heads = heads, .lengths = kLengths, .sink = true});
    }
  }
  check({.name = "splits", .heads = 16, .lengths = {3000}});
  check({.name = "splits", .heads = 128, .lengths = {3000, 20}}, kSomeRows);
  check({.name = "many", .heads = 64, .lengths = std::vector<int>(150, 130)}, kSomeRows);
  check({.name = "many", .heads = 8, .lengths = std::vector<int>(150, 130)});
  check({.name = "by token", .heads = 40, .page_size = 5, .lengths = {300, 64}});
  check({.name = "batch invariant", .heads = 16, .lengths = {900, 64}, .batch_invariant = true});
}

// Boxes of query rows have some heads of a token, or some tokens with all heads: numbers of heads that divide
// 64 or are a multiple of it.
TEST_P(QueryParts, SeveralQueryTokens) {
  for (int heads : {1, 8, 16, 32, 64, 128}) {
    for (int tokens : {2, 5}) {
      check({.name = "drafts",
             .query_tokens = tokens,
             .heads = heads,
             .lengths = {4, 64, 700},
             .causal = true});
    }
    check({.name = "ragged",
           .heads = heads,
           .lengths = {0, 5, 64, 700},
           .ragged_tokens = {0, 3, 1, 2},
           .causal = true});
  }
  check({.name = "window",
         .format = KvFormat::kFp8_656,
         .query_tokens = 3,
         .heads = 16,
         .lengths = {4, 700},
         .causal = true,
         .window = 100});
}

TEST_P(QueryParts, Sparse) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656, KvFormat::kE4m3}) {
    for (int heads : {8, 16, 64, 128}) {
      check({.name = "sparse",
             .format = format,
             .query_tokens = 2,
             .heads = heads,
             .lengths = {10, 300},
             .sparse = true,
             .topk = 130,
             .skipped_indices = 0.2});
    }
  }
}

TEST_P(QueryParts, Fp8Caches) {
  for (int heads : {3, 16, 64, 128}) {
    check({.name = "fp8_656", .format = KvFormat::kFp8_656, .heads = heads, .lengths = kLengths});
    check({.name = "fp8_656 of two lists",
           .format = KvFormat::kFp8_656,
           .heads = heads,
           .lengths = {70, 700},
           .extra_lengths = {0, 300}});
    for (Products products : {Products::kAuto, Products::kFp8}) {
      check({.name = "e4m3",
             .format = KvFormat::kE4m3,
             .scales = 1,
             .products = products,
             .heads = heads,
             .lengths = kLengths});
    }
    for (int scales : {1, heads}) {
      check({.name = "e4m3 queries",
             .format = KvFormat::kE4m3,
             .scales = 1,
             .e4m3_query = true,
             .query_scales = scales,
             .query_tokens = 2,
             .heads = heads,
             .lengths = {2, 64, 700},
             .causal = true});
    }
  }
}

// out as engines have it: heads outermost.
TEST_P(QueryParts, OutWithHeadsOutermost) {
  for (int heads : {16, 128}) {
    by_every_kernel({.name = "out", .heads = heads, .lengths = {1, 64, 700}}, [&](const CaseSpec& of) {
      RandomCase made = runtime::make_case(of, 6);
      const Bytes one = run(made.problem, made.inputs);
      made.inputs = runtime::split_query(made, true);
      DecodeRun run = place(made, executor_);
      const std::int64_t batch = 3, dim = 512;
      TensorView& out = run.outputs().out;
      out.strides = {dim, dim, batch * dim, 1};
      for (const Status& status : {run.run(), run.fetch()}) ASSERT_TRUE(status.ok()) << status.message();
      std::vector<std::uint8_t> moved(one.out.size());
      for (std::int64_t row = 0; row < batch * heads; ++row) {
        const std::int64_t request = row / heads, head = row % heads;
        std::memcpy(moved.data() + row * dim * 2, run.out_bytes().data() + (head * batch + request) * dim * 2,
                    dim * 2);
      }
      EXPECT_EQ(moved, one.out) << of.name;
      EXPECT_EQ(run.lse_bytes(), one.lse) << of.name;
    });
  }
}

TEST_P(QueryParts, SparsePrefill) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656, KvFormat::kE4m3}) {
    for (int heads : {9, 64, 128}) {
      RandomCase made = runtime::make_case({.name = "prefill",
                                            .format = format,
                                            .heads = heads,
                                            .lengths = std::vector<int>(20, 150),
                                            .sparse = true,
                                            .topk = 77,
                                            .skipped_indices = 0.3},
                                           2);
      const SparsePrefillOptions options{.softmax_scale = made.problem.options.softmax_scale};
      auto run = [&](const DecodeInputs& inputs) -> std::vector<std::uint8_t> {
        Result<PrefillRun> of = PrefillRun::create(runtime::prefill_inputs(inputs), options, executor_);
        EXPECT_TRUE(of.ok()) << of.status().message();
        if (!of.ok()) return {};
        for (const Status& status : {of->run(), of->fetch()}) EXPECT_TRUE(status.ok()) << status.message();
        return of->bytes();
      };
      const std::vector<std::uint8_t> one = run(made.inputs);
      ASSERT_FALSE(one.empty());
      for (bool as_engines : {false, true}) {
        EXPECT_EQ(run(runtime::split_query(made, as_engines)), one) << heads;
      }
    }
  }
}

TEST_P(QueryParts, RefusalsNameBothTensors) {
  RandomCase made = runtime::make_case({.heads = 16, .lengths = {70, 700}}, 3);
  made.inputs = runtime::split_query(made, false);
  auto expect_refused = [&](const RandomCase& of, const char* what,
                            const std::function<void(DecodeInputs&, DecodeProblem&)>& change,
                            std::initializer_list<const char*> pieces) {
    DecodeRun run = place(of, executor_);
    DecodeInputs inputs = run.inputs();
    DecodeProblem problem = of.problem;
    change(inputs, problem);
    const Status status = flashlatent::decode(problem, inputs, run.outputs(), run.plan_memory(),
                                              run.workspace_memory(), executor_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << what;
    for (const char* piece : pieces) {
      EXPECT_NE(status.message().find(piece), std::string::npos) << what << ": " << status.message();
    }
  };
  using Inputs = DecodeInputs;
  using Problem = DecodeProblem;
  expect_refused(made, "shape", [](Inputs& in, Problem&) { in.q_rope.shape[2] = 15; },
                 {"q is", "q_rope is", "(2, 1, 15, 64)"});
  expect_refused(made, "columns", [](Inputs& in, Problem&) { in.q_rope.shape[3] = 63; },
                 {"q is", "q_rope is", "(2, 1, 16, 63)", "last 64 columns"});
  expect_refused(made, "q with all columns", [](Inputs& in, Problem&) { in.q.shape[3] = 576; },
                 {"q is", "(2, 1, 16, 576)", "q_rope is", "first 512"});
  expect_refused(made, "dtype", [](Inputs& in, Problem&) { in.q_rope.dtype = Dtype::kF16; },
                 {"q is bf16", "q_rope is fp16"});
  expect_refused(made, "device",
                 [](Inputs& in, Problem&) {
                   in.q_rope.device = {DeviceType::kCuda, 7};
                 },
                 {"q is", "q_rope is", "cuda:7"});
  expect_refused(made, "innermost stride", [](Inputs& in, Problem&) { in.q_rope.strides[3] = 2; },
                 {"q_rope is", "innermost stride"});
  expect_refused(made, "null", [](Inputs& in, Problem&) { in.q_rope.data = nullptr; },
                 {"q_rope is", "null pointer"});
  expect_refused(made, "missing", [](Inputs& in, Problem&) { in.q_rope = {}; },
                 {"q is", "q_rope is missing", "576"});
  if (on_gpu()) {
    expect_refused(
        made, "alignment",
        [](Inputs& in, Problem&) { in.q_rope.data = static_cast<const std::uint8_t*>(in.q_rope.data) + 2; },
        {"q_rope at", "16"});
  }
  const RandomCase without = runtime::make_case({.heads = 16, .qk_dim = 512, .lengths = {70, 700}}, 3);
  expect_refused(without, "512 columns",
                 [&](Inputs& in, Problem&) {
                   in.q_rope = in.q;
                   in.q_rope.shape[3] = 64;
                 },
                 {"q_rope is", "qk_dim 512"});
  const RandomCase separate = runtime::make_case({.layout = KvLayout::kSeparate,
                                                  .heads = 16,
                                                  .kv_heads = 2,
                                                  .qk_dim = 128,
                                                  .v_dim = 128,
                                                  .lengths = {70, 700}},
                                                 3);
  expect_refused(separate, "separate keys and values", [](Inputs& in, Problem&) { in.q_rope = in.q; },
                 {"q_rope is given", "separate"});
}

TEST_P(QueryParts, ProblemIsThatOfOneTensor) {
  RandomCase made = runtime::make_case({.heads = 16, .lengths = {70, 700}, .causal = true}, 3);
  const DecodeInputs parts = runtime::split_query(made, true);
  const Result<DecodeProblem> one = infer_problem(made.inputs, 512, made.problem.options);
  const Result<DecodeProblem> two = infer_problem(parts, 512, made.problem.options);
  ASSERT_TRUE(one.ok() && two.ok()) << two.status().message();
  EXPECT_EQ(to_string(*two), to_string(*one));
  DecodeInputs wrong = parts;
  wrong.kv_cache.shape[3] = 512;
  const std::string text = infer_problem(wrong, 512, made.problem.options).status().message();
  EXPECT_NE(text.find("q_rope is"), std::string::npos) << text;
  EXPECT_NE(text.find("kv_cache is"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Backends, QueryParts, kBackends, backend_name);

}  // namespace
}  // namespace flashlatent
