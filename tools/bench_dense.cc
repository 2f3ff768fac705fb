// flashlatent bench dense: decode by page table.
#include <cmath>
#include <numeric>

#include "core/formats/formats.h"
#include "tools/bench_decode.h"

namespace flashlatent::tools {

namespace {

/// One shape given by options, instead of a suite.
struct ShapeOptions {
  int batch = 128;
  int mean_length = 4096;
  std::string distribution = "uniform";
  std::vector<int> lengths;
  DecodeProblem problem;
  std::string dtype = "bf16";
};

struct BenchDenseOptions {
  BenchOptions bench;
  ShapeOptions shape;
  std::string kv;  // empty: plain, or what the suite has
  bool e4m3_queries = false;
  std::string products = "auto";
};

BenchCase case_of(const ShapeOptions& shape) {
  BenchCase c;
  c.problem = shape.problem;
  c.problem.cache.dtype = shape.dtype == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  c.problem.options.softmax_scale = 1.0F / std::sqrt(static_cast<float>(c.problem.cache.qk_dim));
  c.distribution = shape.distribution;
  c.mean_length = shape.mean_length;
  c.lengths = make_lengths(shape.distribution, shape.batch, shape.mean_length, c.problem.query.tokens);
  if (!shape.lengths.empty()) {
    c.lengths = shape.lengths;
    c.distribution = "list";
    c.mean_length = static_cast<int>(std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0}) /
                                     static_cast<std::int64_t>(c.lengths.size()));
  }
  c.name = name_of(c);
  return c;
}

int run_bench_dense(const BenchDenseOptions& options) {
  std::vector<BenchCase> cases = options.bench.suite.empty()
                                     ? std::vector<BenchCase>{case_of(options.shape)}
                                     : suite_cases(dense_suites(), options.bench.suite);
  const bool fp8 = !options.kv.empty() && options.kv != "plain";
  if (!options.bench.suite.empty() && fp8) {
    std::erase_if(cases, [](const BenchCase& c) { return c.problem.cache.dtype != Dtype::kBF16; });
    if (cases.empty()) {
      return fail({StatusCode::kInvalidArgument, "--kv is " + options.kv + ", but suite " +
                                                     options.bench.suite +
                                                     " has no bf16 case; plain is accepted"});
    }
  }
  for (BenchCase& c : cases) {
    if (!options.kv.empty()) set_format(c.problem.cache, *kv_format_from_name(options.kv));
    c.problem.query.e4m3 = options.e4m3_queries;
    c.problem.options.products = *products_from_name(options.products);
    if (const Status status = validate(c.problem); !status.ok()) return fail(status);
  }
  return run_bench_decode("dense", std::move(cases), options.bench);
}

void add_shape_options(CLI::App& app, ShapeOptions& shape) {
  auto add = [&](const char* flag, int& value, const char* help, int most) {
    app.add_option(flag, value, help)->check(CLI::Range(1, most))->capture_default_str()->group("Shape");
  };
  auto& [query, cache, sparse, problem_options] = shape.problem;
  query.heads = 128;
  add("--batch", shape.batch, "Requests", 1 << 20);
  add("--tokens", shape.mean_length, "Mean length, s_k", 1 << 30);
  app.add_option("--lengths", shape.distribution, "uniform, or normal with deviation s_k/2")
      ->check(CLI::IsMember({"uniform", "normal"}))
      ->capture_default_str()
      ->group("Shape");
  CLI::Option* list = add_list_option(app, "--length-list", shape.lengths, 0, 1 << 30,
                                      "Every request's length, instead of --batch, --tokens and --lengths");
  list->group("Shape");
  for (const char* other : {"--batch", "--tokens", "--lengths"}) list->excludes(other);
  add("--query-tokens", query.tokens, "s_q", 1 << 16);
  add("--heads", query.heads, "h_q", 1 << 16);
  add("--kv-heads", cache.heads, "h_kv", 1 << 16);
  add("--qk-dim", cache.qk_dim, "Elements of a cached row", 1 << 16);
  add("--v-dim", cache.v_dim, "Its first elements that are the value", 1 << 16);
  add("--page-size", cache.page_size, "Tokens a page", 1 << 20);
  app.add_option("--dtype", shape.dtype, "bf16 or fp16")
      ->check(CLI::IsMember({"bf16", "fp16"}))
      ->capture_default_str()
      ->group("Shape");
  app.add_flag("--causal,!--no-causal", problem_options.causal, "Causal mask (suites: always)")
      ->group("Shape");
  exclude_suite(app);
}

}  // namespace

void add_bench_dense(CLI::App& bench, Action& action) {
  CLI::App* dense = bench.add_subcommand("dense", "Dense decode out of a paged cache");
  auto options = std::make_shared<BenchDenseOptions>();
  options->shape.problem.options.causal = true;
  add_bench_options(*dense, dense_suites(), options->bench);
  add_shape_options(*dense, options->shape);
  dense->add_option("--kv", options->kv, "Cache format, of suites (their bf16 cases), too")
      ->check(CLI::IsMember(kv_format_names()));
  dense->add_flag("--e4m3-queries", options->e4m3_queries, "With --kv e4m3: queries in e4m3, too");
  dense->add_option("--products", options->products, "With --kv e4m3: what is multiplied")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}))
      ->capture_default_str();
  dense->footer(
      "A call is decode with its combine step; the plan is made once before. roof% is the least time that "
      "the bytes or the operations need at the measured roof, over the time taken.\n"
      "Example: flashlatent bench dense --suite peers --backend cuda --json dense.json");
  dense->callback([&action, options] { action = [options] { return run_bench_dense(*options); }; });
}

}  // namespace flashlatent::tools
