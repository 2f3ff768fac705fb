// flashlatent bench dense: how long decode calls take, beside what the machine could do at most.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/message.h"
#include "runtime/bench_check.h"
#include "runtime/roof.h"
#include "runtime/timing.h"
#include "tools/bench_case.h"
#include "tools/command.h"
#include "tools/machine.h"
#include "tools/progress.h"
#include "tools/source_tree.h"

namespace flashlatent::tools {

namespace {

/// One shape by options, instead of a suite.
struct ShapeOptions {
  int batch = 128;
  int mean_length = 4096;
  std::string distribution = "uniform";
  std::vector<int> lengths;
  DecodeProblem problem;
  std::string dtype = "bf16";
  float deviation = 0.1F;
};

struct BenchDenseOptions {
  std::string suite;
  std::string filter;
  ShapeOptions shape;
  runtime::TimingOptions timing;
  bool oracle = false;
  bool rmse = false;
  bool explain = false;
  bool list = false;
  std::uint64_t seed = 0;
  std::string json;
  ExecutorOptions executor;
};

/// A measured case.
struct Measurement {
  runtime::Timing timing;
  std::string kernel;
  bool graph = false;
  double tflops = 0;
  double gbps = 0;
  double roof_pct = 0;
  double oracle_ms = 0;
  double variant_ms = 0;       // with batch_invariant: the time without it
  runtime::Comparison sample;  // with --rmse
  std::string why;
};

constexpr int kSampleRows = 32;

struct Work {
  double flops = 0;
  double bytes = 0;
};

/// 2 (d_qk + d_v) operations a row and token; the cache read once, q read and out written once.
Work work_of(const BenchCase& c) {
  const auto& [query, cache, sparse, options] = c.problem;
  const double tokens = std::accumulate(c.lengths.begin(), c.lengths.end(), 0.0);
  const double rows = static_cast<double>(c.lengths.size()) * query.tokens * query.heads;
  Work work;
  work.flops = 2.0 * tokens * query.tokens * query.heads * (cache.qk_dim + cache.v_dim);
  work.bytes = 2.0 * (tokens * cache.heads * cache.qk_dim + rows * (cache.qk_dim + cache.v_dim));
  return work;
}

/// Plans once, times decode. Leaves the call's result in the input's outputs.
Result<runtime::Timing> time_decode(const runtime::BenchInput& input, const runtime::TimingOptions& options,
                                    const Executor& executor) {
  Result<std::size_t> plan_size = plan_bytes(input.problem, executor);
  if (!plan_size.ok()) return plan_size.status();
  Result<std::size_t> workspace_size = workspace_bytes(input.problem, executor);
  if (!workspace_size.ok()) return workspace_size.status();
  Result<runtime::Buffer> plan_memory = runtime::Buffer::allocate(executor, *plan_size);
  if (!plan_memory.ok()) return plan_memory.status();
  Result<runtime::Buffer> workspace = runtime::Buffer::allocate(executor, *workspace_size);
  if (!workspace.ok()) return workspace.status();
  FLASHLATENT_RETURN_IF_ERROR(
      plan(input.problem, input.inputs.cache_seqlens, plan_memory->memory(), executor));
  auto call = [&] {
    return decode(input.problem, input.inputs, input.outputs, plan_memory->memory(), workspace->memory(),
                  executor);
  };
  return runtime::time_calls(call, options, executor);
}

Result<Measurement> measure(const BenchCase& c, const BenchDenseOptions& options, const runtime::Roof& roof,
                            const Executor& executor) {
  Result<runtime::BenchInput> input =
      runtime::make_bench_input(c.problem, c.lengths, c.deviation, options.seed, executor);
  if (!input.ok()) return input.status();
  runtime::TimingOptions timing_options = options.timing;
  timing_options.graph = (timing_options.graph || c.graph) && executor.backend == Backend::kCuda;
  Result<runtime::Timing> timing = time_decode(*input, timing_options, executor);
  if (!timing.ok()) return timing.status();
  Result<std::string> picked = picked_kernel(input->problem, executor);
  if (!picked.ok()) return picked.status();
  Result<std::string> why = explain(input->problem, executor);
  if (!why.ok()) return why.status();

  Measurement m;
  m.timing = *timing;
  m.kernel = *picked;
  m.why = *why;
  m.graph = timing_options.graph;
  const Work work = work_of(c);
  m.tflops = work.flops / timing->median * 1e-9;
  m.gbps = work.bytes / timing->median * 1e-6;
  const double floor_ms = std::max(work.bytes / roof.read_tbps, work.flops / roof.matmul_tflops) * 1e-9;
  m.roof_pct = 100 * floor_ms / timing->median;
  if (c.rmse) {
    Result<runtime::Comparison> sample = runtime::compare_sample(*input, kSampleRows, executor);
    if (!sample.ok()) return sample.status();
    m.sample = *sample;
  }
  if (c.problem.options.batch_invariant) {
    input->problem.options.batch_invariant = false;
    Result<runtime::Timing> variant = time_decode(*input, timing_options, executor);
    if (!variant.ok()) return variant.status();
    input->problem.options.batch_invariant = true;
    m.variant_ms = variant->median;
  }
  if (options.oracle) {
    Executor oracle = executor;
    oracle.kernel = "reference";
    Result<runtime::Timing> oracle_timing = time_decode(*input, {.repeats = 1}, oracle);
    if (!oracle_timing.ok()) return oracle_timing.status();
    m.oracle_ms = oracle_timing->median;
  }
  return m;
}

BenchCase case_of(const ShapeOptions& shape) {
  BenchCase c;
  c.problem = shape.problem;
  c.problem.cache.dtype = shape.dtype == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  c.problem.options.softmax_scale = 1.0F / std::sqrt(static_cast<float>(c.problem.cache.qk_dim));
  c.distribution = shape.distribution;
  c.mean_length = shape.mean_length;
  c.deviation = shape.deviation;
  c.lengths = make_lengths(shape.distribution, shape.batch, shape.mean_length, c.problem.query.tokens);
  if (!shape.lengths.empty()) {
    c.lengths = shape.lengths;
    c.distribution = "list";
    c.mean_length = static_cast<int>(std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0}) /
                                     static_cast<std::int64_t>(c.lengths.size()));
  }
  c.name = fmt::format("b{} s_q{} h{} s_k{} {}", c.lengths.size(), c.problem.query.tokens,
                       c.problem.query.heads, c.mean_length, c.distribution);
  return c;
}

nlohmann::ordered_json to_json(const BenchCase& c, const Measurement& m,
                               const runtime::TimingOptions& timing) {
  const auto& [query, cache, sparse, options] = c.problem;
  nlohmann::ordered_json lengths = c.distribution;
  if (c.distribution == "list") lengths = c.lengths;
  nlohmann::ordered_json row = {{"name", c.name},
                                {"kernel", m.kernel},
                                {"b", c.lengths.size()},
                                {"s_q", query.tokens},
                                {"h_q", query.heads},
                                {"h_kv", cache.heads},
                                {"d_qk", cache.qk_dim},
                                {"d_v", cache.v_dim},
                                {"s_k", c.mean_length},
                                {"lengths", lengths},
                                {"dtype", to_string(cache.dtype)},
                                {"kv", to_string(cache.dtype)},
                                {"page_size", cache.page_size},
                                {"graph", m.graph},
                                {"cold", timing.cold},
                                {"batch_invariant", options.batch_invariant},
                                {"deviation", c.deviation},
                                {"ms", m.timing.median},
                                {"ms_min", m.timing.least},
                                {"ms_max", m.timing.most},
                                {"repeats", m.timing.repeats},
                                {"tflops", m.tflops},
                                {"gbps", m.gbps},
                                {"roof_pct", m.roof_pct}};
  if (m.variant_ms > 0) {
    row["ms_without_batch_invariant"] = m.variant_ms;
    row["batch_invariant_cost"] = m.timing.median / m.variant_ms;
  }
  if (m.sample.rows > 0) {
    row["rmse"] = m.sample.rmse;
    row["relative_error"] = m.sample.relative_error;
    row["rows_compared"] = m.sample.rows;
  }
  if (m.oracle_ms > 0) row["oracle_ms"] = m.oracle_ms;
  return row;
}

/// The columns that not every run has.
struct Columns {
  bool variant = false, rmse = false, oracle = false;
};

void print_head(const Columns& columns) {
  fmt::print("{:<34} {:<12} {:<5} {:>9} {:>9} {:>9} {:>8} {:>7} {:>6}", "case", "kernel", "graph", "ms",
             "least", "most", "TFLOP/s", "GB/s", "roof%");
  if (columns.variant) fmt::print(" {:>9}", "x variant");
  if (columns.rmse) fmt::print(" {:>9}", "rmse");
  if (columns.oracle) fmt::print(" {:>9}", "x oracle");
  fmt::print("\n");
}

void print_row(const BenchCase& c, const Measurement& m, const Columns& columns) {
  fmt::print("{:<34} {:<12} {:<5} {:>9.4f} {:>9.4f} {:>9.4f} {:>8.2f} {:>7.0f} {:>6.1f}", c.name, m.kernel,
             m.graph ? "yes" : "no", m.timing.median, m.timing.least, m.timing.most, m.tflops, m.gbps,
             m.roof_pct);
  if (columns.variant) fmt::print(" {:>9.3f}", m.timing.median / m.variant_ms);
  if (columns.rmse) fmt::print(" {:>9.2e}", m.sample.rmse);
  if (columns.oracle) fmt::print(" {:>9.1f}", m.oracle_ms / m.timing.median);
  fmt::print("\n");
}

Result<std::vector<BenchCase>> cases_of(const BenchDenseOptions& options) {
  std::vector<BenchCase> cases;
  for (BenchCase& c :
       options.suite.empty() ? std::vector<BenchCase>{case_of(options.shape)} : bench_suite(options.suite)) {
    if (c.name.find(options.filter) == std::string::npos) continue;
    c.problem.options.batch_invariant |= options.shape.problem.options.batch_invariant;
    c.rmse |= options.rmse;
    cases.push_back(std::move(c));
  }
  if (!cases.empty()) return cases;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("--filter '{}' matches no case of suite {}; --list shows them", options.filter,
                            options.suite));
}

int run_bench_dense(const BenchDenseOptions& options) {
  Result<std::vector<BenchCase>> cases = cases_of(options);
  if (!cases.ok()) return fail(cases.status());
  if (options.list) {
    for (const BenchCase& c : *cases) fmt::print("{}\n", c.name);
    return kRight;
  }
  Result<Executor> made = make_executor(options.executor);
  if (!made.ok()) return fail(made.status());
  Executor executor = *made;
  if (options.oracle && executor.backend != Backend::kCpu) {
    return fail({StatusCode::kInvalidArgument, "--oracle times the CPU's reference; add --backend cpu"});
  }
  Result<runtime::Stream> stream = runtime::Stream::create(executor);
  if (!stream.ok()) return fail(stream.status());
  executor.stream = stream->get();
  Result<runtime::Roof> roof = runtime::measure_roof(executor);
  if (!roof.ok()) return fail(roof.status());
  fmt::print("roof, measured now: read {:.3f} TB/s, {} {:.3f} TFLOP/s; source tree {}\n", roof->read_tbps,
             executor.backend == Backend::kCuda ? "wgmma bf16" : "fp32 multiply-add", roof->matmul_tflops,
             source_tree());
  const Columns columns{.variant = options.shape.problem.options.batch_invariant,
                        .rmse = std::any_of(cases->begin(), cases->end(), [](auto& c) { return c.rmse; }),
                        .oracle = options.oracle};
  if (columns.rmse) fmt::print("rmse: against float64, up to {} rows a case\n", kSampleRows);
  print_head(columns);

  int exit_code = kRight;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  Progress progress("bench dense", static_cast<std::int64_t>(cases->size()));
  for (const BenchCase& c : *cases) {
    Result<Measurement> m = measure(c, options, *roof, executor);
    if (!m.ok()) return fail(m.status());
    progress.clear();
    print_row(c, *m, columns);
    if (options.explain) fmt::print("{}", m->why);
    if (!m->sample.ok()) {
      fmt::print("{}\n", to_string(m->sample));
      exit_code = kWrongResult;
    }
    std::fflush(stdout);
    results.push_back(to_json(c, *m, options.timing));
    progress.update(static_cast<std::int64_t>(results.size()));
  }
  const nlohmann::ordered_json document = {
      {"machine", describe_machine(executor)},
      {"source_tree", source_tree()},
      {"command", command_line()},
      {"roof", {{"read_tbps", roof->read_tbps}, {"matmul_tflops", roof->matmul_tflops}}},
      {"results", results}};
  if (Status status = write_json(options.json, document); !status.ok()) return fail(status);
  return exit_code;
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
  app.add_option("--length-list", shape.lengths, "Every request's length, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 30))
      ->group("Shape");
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
  app.add_option("--deviation", shape.deviation, "Deviation of the normal inputs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Shape");
  app.add_flag("--causal,!--no-causal", problem_options.causal, "Causal mask (suites: always)")
      ->group("Shape");
}

}  // namespace

void add_bench_dense(CLI::App& bench, Action& action) {
  CLI::App* dense = bench.add_subcommand("dense", "Dense decode out of a paged cache");
  auto options = std::make_shared<BenchDenseOptions>();
  options->shape.problem.options.causal = true;
  dense
      ->add_option("--suite", options->suite,
                   "Many shapes, in place of the one below:" + describe_bench_suites())
      ->check(CLI::IsMember(bench_suites()));
  dense->add_option("--filter", options->filter, "Only cases whose name contains this");
  add_shape_options(*dense, options->shape);
  dense->add_flag("--batch-invariant", options->shape.problem.options.batch_invariant,
                  "With the option batch_invariant on, and what it costs: times each case without it, too");
  dense->add_flag(
      "--graph", options->timing.graph,
      "CUDA: replay a graph of 20 calls, so that launch gaps are out (suites: for small batches)");
  dense->add_flag("--cold", options->timing.cold, "Empty the caches before each call");
  dense->add_option("--repeats", options->timing.repeats, "Timed calls; the median is reported")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  dense->add_flag("--oracle", options->oracle, "CPU: also time the float64 oracle");
  dense->add_flag("--rmse", options->rmse,
                  "Compare a sample of rows with the float64 oracle (suite etap: always)");
  dense->add_flag("--explain", options->explain, "Why this kernel, and why no other");
  dense->add_flag("--list", options->list, "Print the cases' names and stop");
  add_executor_options(*dense, options->executor);
  add_seed_option(*dense, options->seed);
  add_json_option(*dense, options->json);
  dense->footer(
      "A call is decode with its combine step; the plan is made once before. roof% is the least time that "
      "the bytes or the operations need at the measured roof, over the time taken.\n"
      "Example: flashlatent bench dense --suite peers --backend cuda --json dense.json");
  dense->callback([&action, options] { action = [options] { return run_bench_dense(*options); }; });
}

}  // namespace flashlatent::tools
