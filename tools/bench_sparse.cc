// flashlatent bench sparse: decode by indices.
#include <fmt/core.h>

#include <cmath>

#include "core/formats/formats.h"
#include "tools/bench_decode.h"

namespace flashlatent::tools {

namespace {

/// One shape given by options, instead of a suite.
struct SparseShape {
  int batch = 128;
  int tokens = 32768;
  DecodeProblem problem;
  std::string kv = "fp8_656";
  std::string dtype = "bf16";
};

struct BenchSparseOptions {
  BenchOptions bench;
  SparseShape shape;
};

BenchCase case_of(const SparseShape& shape) {
  BenchCase c;
  c.problem = shape.problem;
  set_format(c.problem.cache, *kv_format_from_name(shape.kv));
  c.problem.cache.dtype = shape.dtype == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  c.problem.options.softmax_scale = 1.0F / std::sqrt(static_cast<float>(c.problem.cache.qk_dim));
  c.mean_length = shape.tokens;
  c.lengths = make_lengths("uniform", shape.batch, shape.tokens, 1);
  c.name = name_of(c);
  return c;
}

int run_bench_sparse(const BenchSparseOptions& options) {
  const SparseShape& shape = options.shape;
  if (options.bench.suite.empty() && shape.problem.sparse.topk > shape.tokens) {
    return fail(
        {StatusCode::kInvalidArgument,
         fmt::format("--topk is {} and --tokens is {}; a query token's indices are different, so that "
                     "--topk up to --tokens is accepted",
                     shape.problem.sparse.topk, shape.tokens)});
  }
  std::vector<BenchCase> cases = options.bench.suite.empty()
                                     ? std::vector<BenchCase>{case_of(options.shape)}
                                     : suite_cases(sparse_suites(), options.bench.suite);
  for (const BenchCase& c : cases) {
    if (const Status status = validate(c.problem); !status.ok()) return fail(status);
  }
  return run_bench_decode("sparse", std::move(cases), options.bench);
}

void add_shape_options(CLI::App& app, SparseShape& shape) {
  auto add = [&](const char* flag, int& value, const char* help, int most) {
    app.add_option(flag, value, help)->check(CLI::Range(1, most))->capture_default_str()->group("Shape");
  };
  shape.problem.query.heads = 128;
  shape.problem.sparse = {.enabled = true, .topk = 2048};
  add("--batch", shape.batch, "Requests", 1 << 20);
  add("--topk", shape.problem.sparse.topk, "Indices of a query token", 1 << 30);
  add("--tokens", shape.tokens, "Tokens of a request, of which indices name random ones", 1 << 30);
  add("--query-tokens", shape.problem.query.tokens, "s_q", 1 << 16);
  add("--heads", shape.problem.query.heads, "h_q", 1 << 16);
  add("--page-size", shape.problem.cache.page_size, "Tokens a page", 1 << 20);
  app.add_option("--kv", shape.kv, "Cache format; plain: elements of the dtype")
      ->check(CLI::IsMember(kv_format_names()))
      ->capture_default_str()
      ->group("Shape");
  app.add_option("--dtype", shape.dtype, "bf16 or fp16")
      ->check(CLI::IsMember({"bf16", "fp16"}))
      ->capture_default_str()
      ->group("Shape");
  exclude_suite(app);
}

}  // namespace

void add_bench_sparse(CLI::App& bench, Action& action) {
  CLI::App* sparse = bench.add_subcommand("sparse", "Sparse decode: topk random tokens a query token");
  auto options = std::make_shared<BenchSparseOptions>();
  add_bench_options(*sparse, sparse_suites(), options->bench);
  add_shape_options(*sparse, options->shape);
  sparse->footer(
      "A query token's indices are random and different . Bytes are each query "
      "token's tokens, read once.\n"
      "Example: flashlatent bench sparse --suite peers --backend cuda --json sparse.json");
  sparse->callback([&action, options] { action = [options] { return run_bench_sparse(*options); }; });
}

}  // namespace flashlatent::tools
