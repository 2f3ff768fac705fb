// flashlatent bench dense, bench sparse, bench paged: times decode calls, and compares them with what the
// machine can do.
#include "tools/bench_decode.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/formats/formats.h"
#include "core/message.h"
#include "core/token_bytes.h"
#include "dispatch/sparse_prefill.h"
#include "flashlatent/plan.h"
#include "runtime/bench_check.h"
#include "runtime/prefill_run.h"
#include "runtime/read_cache.h"
#include "runtime/roof.h"
#include "tools/machine.h"
#include "tools/progress.h"
#include "tools/source_tree.h"

namespace flashlatent::tools {

namespace {

constexpr int kSampleRows = 32;

struct Work {
  double flops = 0;
  double bytes = 0;
};

/// Pairs of query token and token of one request; of a prompt half of the square.
double pairs_of(const DecodeProblem& problem, int length) {
  const double tokens = problem.query.tokens;
  if (problem.sparse.enabled) return tokens * problem.sparse.topk;
  if (!problem.options.causal) return tokens * length;
  const double rows = std::min<double>(tokens, length);  // query tokens that see anything
  return rows * length - rows * (rows - 1) / 2;
}

/// Operations and bytes of a call: 2 (d_qk + d_v) operations for each row and token that it attends to.
/// Dense: the cache is read once, q read and out written once. Sparse: each query token's tokens are read
/// once.
Work work_of(const BenchCase& c) {
  const auto& [query, cache, sparse, options] = c.problem;
  const double requests = static_cast<double>(c.lengths.size());
  double pairs = 0, extra_pairs = 0, tokens = 0;
  for (int length : c.lengths) {
    pairs += pairs_of(c.problem, length);
    tokens += length;
  }
  const auto& extra = cache.extra;
  if (extra.enabled) extra_pairs = requests * query.tokens * (extra.indexed ? extra.topk : c.extra_tokens);
  const auto a_token = static_cast<double>(token_bytes(cache));
  Work work;
  work.flops = 2.0 * (pairs + extra_pairs) * query.heads * (cache.qk_dim + cache.v_dim);
  if (c.problem.token_items()) {
    work.bytes = pairs * a_token + extra_pairs * static_cast<double>(extra_token_bytes(cache));
  } else {
    const double rows = requests * query.tokens * query.heads;
    // Groups read a shared prefix once.
    if (options.prefix_sharing != PrefixSharing::kOff) tokens -= (requests - 1) * c.shared_tokens;
    work.bytes = tokens * a_token + rows * ((query.e4m3 ? 1.0 : 2.0) * cache.qk_dim + 2.0 * cache.v_dim);
  }
  return work;
}

/// Plans once and times decode(). With `layers`: times a step of a plan and this many calls, and divides by
/// `layers`. The call's result stays in the input's outputs.
Result<runtime::Timing> time_decode(const runtime::BenchInput& input, runtime::TimingOptions options,
                                    int layers, const Executor& executor) {
  const Result<Plan> plan = Plan::make(input.problem, executor);
  if (!plan.ok()) return plan.status();
  Result<runtime::Buffer> plan_memory = runtime::Buffer::allocate(executor, plan->plan_bytes());
  if (!plan_memory.ok()) return plan_memory.status();
  Result<runtime::Buffer> workspace = runtime::Buffer::allocate(executor, plan->workspace_bytes());
  if (!workspace.ok()) return workspace.status();
  const PlanLengths lengths = lengths_of(input.problem, input.inputs);
  const bool shares = input.problem.options.prefix_sharing != PrefixSharing::kOff;
  auto make_plan = [&] {
    return shares ? plan->schedule(lengths, input.pages(), plan_memory->memory())
                  : plan->schedule(lengths, plan_memory->memory());
  };
  auto call = [&] {
    return plan->decode(input.inputs, input.outputs, plan_memory->memory(), workspace->memory());
  };
  if (layers == 0) {
    FLASHLATENT_RETURN_IF_ERROR(make_plan());
    return runtime::time_calls(call, options, executor);
  }
  auto step = [&] {
    FLASHLATENT_RETURN_IF_ERROR(make_plan());
    for (int i = 0; i < layers; ++i) FLASHLATENT_RETURN_IF_ERROR(call());
    return Status{};
  };
  options.graph_calls = 1;
  Result<runtime::Timing> timing = runtime::time_calls(step, options, executor);
  if (!timing.ok()) return timing.status();
  for (double* ms : {&timing->median, &timing->least, &timing->most}) *ms /= layers;
  return timing;
}

/// The same for sparse prefill, which has no plan.
Result<runtime::Timing> time_prefill(const runtime::BenchInput& input, bool max_logits,
                                     const runtime::TimingOptions& options, const Executor& executor) {
  const SparsePrefillInputs inputs = runtime::prefill_inputs(input);
  const DecodeProblem& problem = input.problem;
  SparsePrefillOptions call_options = runtime::prefill_options(problem);
  call_options.max_logits = max_logits;
  const std::int64_t s_q = problem.query.tokens, h_q = problem.query.heads;
  const Device device = device_of(executor);
  FLASHLATENT_ASSIGN_OR_RETURN(runtime::Buffer largest,
                               runtime::Buffer::allocate(executor, s_q * h_q * sizeof(float)));
  SparsePrefillOutputs outputs{
      {input.outputs.out.data, problem.cache.dtype, {s_q, h_q, problem.cache.v_dim}, device},
      {},
      {input.outputs.lse.data, Dtype::kF32, {s_q, h_q}, device},
      input.outputs.out_fp8};
  if (!input.outputs.out.present()) outputs.out = {};
  if (max_logits) outputs.max_logits = {largest.data(), Dtype::kF32, {s_q, h_q}, device};
  FLASHLATENT_ASSIGN_OR_RETURN(const std::size_t bytes,
                               sparse_prefill_workspace_bytes(inputs, call_options, executor));
  FLASHLATENT_ASSIGN_OR_RETURN(runtime::Buffer workspace, runtime::Buffer::allocate(executor, bytes));
  return runtime::time_calls(
      [&] { return sparse_prefill(inputs, outputs, call_options, workspace.memory(), executor); }, options,
      executor);
}

/// Clears the caches, as an engine's are before their first token.
Status clear_caches(const runtime::BenchInput& input, const Executor& executor) {
  for (const runtime::Buffer* buffer : {&input.kv_cache, &input.value_cache, &input.extra_kv_cache}) {
    FLASHLATENT_RETURN_IF_ERROR(runtime::fill(buffer->data(), 0, buffer->size(), executor));
  }
  return runtime::synchronize(executor);
}

/// One call between events: emptying the caches hides its launch from the clock.
runtime::TimingOptions cold(runtime::TimingOptions options) {
  options.cold = true;
  options.graph = false;
  return options;
}

}  // namespace

DecodeProblem BenchOptions::reaching(DecodeProblem problem) const {
  problem.options.typical_tokens = typical_tokens;
  if (!problem.sparse.enabled && reach > 0) {
    problem.cache.max_pages = (reach + problem.cache.page_size - 1) / problem.cache.page_size;
  }
  return problem;
}

Result<Measurement> measure(const BenchCase& c, runtime::BenchInput& input, const BenchOptions& options,
                            const runtime::Roof& roof, const Executor& executor) {
  input.problem.options.calls_per_plan = options.told_calls_per_plan();
  runtime::TimingOptions timing_options = options.timing;
  timing_options.graph =
      (timing_options.graph || c.graph || options.layers > 0) && executor.backend == Backend::kCuda;
  const auto time = [&](const runtime::TimingOptions& with) {
    return c.prefill ? time_prefill(input, c.max_logits, with, executor)
                     : time_decode(input, with, options.layers, executor);
  };
  Result<runtime::Timing> timing = time(timing_options);
  if (!timing.ok()) return timing.status();
  const Purpose purpose = c.prefill ? purpose_on(executor.backend, c.max_logits) : Purpose::kDecode;
  DecodeProblem problem = input.problem;
  if (c.prefill) std::swap(problem.query.batch, problem.query.tokens);  // each query token is a request
  Result<std::string> why = explain_for(purpose, problem, executor);
  if (!why.ok()) return why.status();

  Result<Selection> selection = select(problem, executor, purpose);
  if (!selection.ok()) return selection.status();
  Result<std::string> ran = c.prefill ? std::string(selection->kernel->name)
                                      : running_kernel(input.problem, input.inputs, input.outputs, executor);
  if (!ran.ok()) return ran.status();

  Measurement m;
  m.timing = *timing;
  m.kernel = *ran;
  if (executor.backend == Backend::kCuda && m.kernel == selection->kernel->name) {
    m.estimate_ms = static_cast<double>(selection->estimate) * 1e-6;
  }
  m.why = *why;
  m.graph = timing_options.graph;
  if (options.with_cold) {
    Result<runtime::Timing> cold_timing = time(cold(timing_options));
    if (!cold_timing.ok()) return cold_timing.status();
    m.cold = *cold_timing;
  }
  if (options.with_read) {
    Result<std::vector<runtime::Piece>> pieces = runtime::cache_pieces(input);
    if (!pieces.ok()) return pieces.status();
    Result<runtime::Timing> reading = runtime::time_reading(*pieces, timing_options, executor);
    if (!reading.ok()) return reading.status();
    m.reading = *reading;
    if (options.with_cold) {
      reading = runtime::time_reading(*pieces, cold(timing_options), executor);
      if (!reading.ok()) return reading.status();
      m.cold_reading = *reading;
    }
  }
  const Work work = work_of(c);
  m.tflops = work.flops / timing->median * 1e-9;
  m.gbps = work.bytes / timing->median * 1e-6;
  // In sparse prefill many query tokens read the same rows, mostly from L2.
  const double read_bytes = c.prefill ? 0 : work.bytes;
  m.floor_ms = std::max(read_bytes / roof.read_tbps, work.flops / roof.matmul_tflops) * 1e-9;
  m.roof_pct = 100 * m.floor_ms / timing->median;
  if (c.rmse) {
    Result<runtime::Comparison> sample = runtime::compare_sample(input, kSampleRows, executor);
    if (!sample.ok()) return sample.status();
    m.sample = *sample;
  }
  if (c.problem.options.batch_invariant) {
    input.problem.options.batch_invariant = false;
    Result<runtime::Timing> variant = time_decode(input, timing_options, options.layers, executor);
    if (!variant.ok()) return variant.status();
    input.problem.options.batch_invariant = true;
    m.variant_ms = variant->median;
  }
  if (options.oracle) {
    Executor oracle = executor;
    oracle.kernel = "reference";
    Result<runtime::Timing> oracle_timing = c.prefill
                                                ? time_prefill(input, c.max_logits, {.repeats = 1}, oracle)
                                                : time_decode(input, {.repeats = 1}, options.layers, oracle);
    if (!oracle_timing.ok()) return oracle_timing.status();
    m.oracle_ms = oracle_timing->median;
  }
  if (options.with_unrounded_scales) {  // the cache is then another
    FLASHLATENT_ASSIGN_OR_RETURN(const bool any, runtime::spread_scales(input, executor));
    if (any) {
      FLASHLATENT_ASSIGN_OR_RETURN(m.unrounded, time(timing_options));
    }
  }
  if (options.with_zeros) {  // and so here
    FLASHLATENT_RETURN_IF_ERROR(clear_caches(input, executor));
    FLASHLATENT_ASSIGN_OR_RETURN(m.zeros, time(timing_options));
  }
  return m;
}

nlohmann::ordered_json to_json(const BenchCase& c, const Measurement& m, const BenchOptions& bench) {
  const auto& [query, cache, sparse, options] = c.problem;
  const bool plain = cache.format == KvFormat::kPlain;
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
                                {"kv", plain ? to_string(cache.dtype) : to_string(cache.format)},
                                {"page_size", cache.page_size},
                                {"graph", m.graph},
                                {"cold", bench.timing.cold},
                                {"batch_invariant", options.batch_invariant},
                                {"deviation", c.deviation},
                                {"ms", m.timing.median},
                                {"ms_min", m.timing.least},
                                {"ms_max", m.timing.most},
                                {"repeats", m.timing.repeats},
                                {"tflops", m.tflops},
                                {"gbps", m.gbps},
                                {"floor_ms", m.floor_ms},
                                {"roof_pct", m.roof_pct}};
  if (bench.reach > 0) row["reach"] = bench.reach;
  if (bench.typical_tokens > 0) row["typical_tokens"] = bench.typical_tokens;
  if (m.estimate_ms > 0) row["estimate_ms"] = m.estimate_ms;
  if (query.e4m3) row["q"] = "e4m3";
  if (c.problem.fp8_products()) row["products"] = "fp8";
  if (cache.layout != KvLayout::kLatent) row["layout"] = to_string(cache.layout);
  if (c.shared_tokens > 0) {
    row["shared_tokens"] = c.shared_tokens;
    row["prefix_sharing"] = to_string(options.prefix_sharing);
  }
  if (sparse.enabled) row["topk"] = sparse.topk;
  if (cache.extra.enabled) {
    row["extra_page_size"] = cache.extra.page_size;
    row[cache.extra.indexed ? "extra_topk" : "extra_tokens"] =
        cache.extra.indexed ? cache.extra.topk : c.extra_tokens;
  }
  if (c.prefill) row["prefill"] = true;
  if (!c.max_logits) row["max_logits"] = false;
  if (bench.layers > 0) row["layers"] = bench.layers;
  if (bench.told_calls_per_plan() > 0) row["calls_per_plan"] = bench.told_calls_per_plan();
  if (m.cold.repeats > 0) {
    row["ms_cold"] = m.cold.median;
    row["ms_cold_min"] = m.cold.least;
    row["ms_cold_max"] = m.cold.most;
  }
  if (m.reading.repeats > 0) row["ms_reading"] = m.reading.median;
  if (m.cold_reading.repeats > 0) row["ms_cold_reading"] = m.cold_reading.median;
  if (m.zeros.repeats > 0) row["ms_zeros"] = m.zeros.median;
  if (m.unrounded.repeats > 0) row["ms_unrounded_scales"] = m.unrounded.median;
  if (m.variant_ms > 0) {
    row["ms_without_batch_invariant"] = m.variant_ms;
    row["batch_invariant_cost"] = m.timing.median / m.variant_ms;
  }
  if (m.sample.rows > 0) {
    row["rmse"] = m.sample.rmse;
    row["relative_error"] = m.sample.relative_error;
    row["plain_relative_error"] = m.sample.plain_relative_error;
    row["lse_error"] = m.sample.lse_error;
    row["worst_ratio"] = m.sample.worst_ratio;
    row["rows_compared"] = m.sample.rows;
  }
  if (m.oracle_ms > 0) row["oracle_ms"] = m.oracle_ms;
  return row;
}

namespace {

Result<Measurement> measure(const BenchCase& c, const BenchOptions& options, const runtime::Roof& roof,
                            const Executor& executor) {
  Result<runtime::BenchInput> input =
      runtime::make_bench_input(options.reaching(c.problem), c.lengths, c.deviation, options.seed, executor,
                                c.shared_tokens, c.extra_tokens);
  if (!input.ok()) return input.status();
  if (c.edges.any()) {
    FLASHLATENT_RETURN_IF_ERROR(runtime::add_edges(*input, c.edges, options.seed, executor));
  }
  return measure(c, *input, options, roof, executor);
}

/// The columns that only some runs have.
struct Columns {
  bool estimate = false, cold = false, read = false, zeros = false, unrounded = false, floor = false,
       variant = false, rmse = false, oracle = false;
};

void print_head(const Columns& columns) {
  fmt::print("{:<38} {:<12} {:<5} {:>9} {:>9} {:>9} {:>8} {:>7} {:>6}", "case", "kernel", "graph", "ms",
             "least", "most", "TFLOP/s", "GB/s", "roof%");
  if (columns.estimate) fmt::print(" {:>9}", "estimate");
  if (columns.cold) fmt::print(" {:>9}", "cold ms");
  if (columns.read) fmt::print(" {:>9}", "read ms");
  if (columns.read && columns.cold) fmt::print(" {:>9}", "cold read");
  if (columns.unrounded) fmt::print(" {:>11}", "x unrounded");
  if (columns.zeros) fmt::print(" {:>9}", "x zeros");
  if (columns.floor) fmt::print(" {:>9}", "floor ms");
  if (columns.variant) fmt::print(" {:>9}", "x variant");
  if (columns.rmse) fmt::print(" {:>9}", "rmse");
  if (columns.oracle) fmt::print(" {:>9}", "x oracle");
  fmt::print("\n");
}

void print_row(const BenchCase& c, const Measurement& m, const Columns& columns) {
  fmt::print("{:<38} {:<12} {:<5} {:>9.4f} {:>9.4f} {:>9.4f} {:>8.2f} {:>7.0f} {:>6.1f}", c.name, m.kernel,
             m.graph ? "yes" : "no", m.timing.median, m.timing.least, m.timing.most, m.tflops, m.gbps,
             m.roof_pct);
  if (columns.estimate) fmt::print(" {:>9.4f}", m.estimate_ms);
  if (columns.cold) fmt::print(" {:>9.4f}", m.cold.median);
  if (columns.read) fmt::print(" {:>9.4f}", m.reading.median);
  if (columns.read && columns.cold) fmt::print(" {:>9.4f}", m.cold_reading.median);
  if (columns.unrounded && m.unrounded.repeats == 0) fmt::print(" {:>11}", "-");
  if (columns.unrounded && m.unrounded.repeats > 0)
    fmt::print(" {:>11.3f}", m.unrounded.median / m.timing.median);
  if (columns.zeros) fmt::print(" {:>9.3f}", m.zeros.median / m.timing.median);
  if (columns.floor) fmt::print(" {:>9.4f}", m.floor_ms);
  if (columns.variant) fmt::print(" {:>9.3f}", m.timing.median / m.variant_ms);
  if (columns.rmse) fmt::print(" {:>9.2e}", m.sample.rmse);
  if (columns.oracle) fmt::print(" {:>9.1f}", m.oracle_ms / m.timing.median);
  fmt::print("\n");
}

}  // namespace

int run_bench_decode(const char* name, std::vector<BenchCase> all, const BenchOptions& options) {
  std::vector<BenchCase> cases;
  for (BenchCase& c : all) {
    if (c.name.find(options.filter) == std::string::npos) continue;
    c.problem.options.batch_invariant = options.batch_invariant;
    c.rmse |= options.rmse;
    c.deviation = options.deviation.value_or(c.deviation);
    cases.push_back(std::move(c));
  }
  if (cases.empty()) {
    return fail({StatusCode::kInvalidArgument,
                 fmt::format("--filter '{}' matches no case of suite {}; --list shows them", options.filter,
                             options.suite)});
  }
  if (options.list) {
    for (const BenchCase& c : cases) fmt::print("{}\n", c.name);
    return kRight;
  }
  Result<Executor> made = make_executor(options.executor);
  if (!made.ok()) return fail(made.status());
  Executor executor = *made;
  if (options.oracle && executor.backend != Backend::kCpu) {
    return fail({StatusCode::kInvalidArgument, "--oracle times the CPU's reference; add --backend cpu"});
  }
  if (const Status status = check_cuda_flag("--graph", options.timing.graph, executor); !status.ok()) {
    return fail(status);
  }
  if (options.with_read && executor.backend != Backend::kCuda) {
    return fail({StatusCode::kInvalidArgument, "--with-read times a CUDA kernel; add --backend cuda"});
  }
  const bool prefill = std::any_of(cases.begin(), cases.end(), [](auto& c) { return c.prefill; });
  if (prefill && (options.layers > 0 || options.calls_per_plan || options.batch_invariant || options.rmse)) {
    return fail({StatusCode::kInvalidArgument,
                 "--layers, --calls-per-plan, --batch-invariant and --rmse are of decode, and there are "
                 "cases of sparse prefill; "
                 "check --suite sparse_prefill compares these with the oracle"});
  }
  for (const BenchCase& c : cases) {
    const Status status =
        runtime::check_bench_memory(c.problem, c.lengths, executor, c.shared_tokens, c.extra_tokens);
    if (!status.ok()) return fail({status.code(), fmt::format("{}: {}", c.name, status.message())});
  }
  Result<runtime::Stream> stream = runtime::Stream::create(executor);
  if (!stream.ok()) return fail(stream.status());
  executor.stream = stream->get();
  Result<runtime::Roof> roof = runtime::measure_roof(executor);
  if (!roof.ok()) return fail(roof.status());
  fmt::print("roof, measured now: read {:.3f} TB/s, {} {:.3f} TFLOP/s; source tree {}\n", roof->read_tbps,
             executor.backend == Backend::kCuda ? "wgmma bf16" : "fp32 multiply-add", roof->matmul_tflops,
             source_tree());
  if (options.layers > 0)
    fmt::print("ms: a step of a plan and {} calls, over {}\n", options.layers, options.layers);
  const Columns columns{.estimate = options.explain && executor.backend == Backend::kCuda,
                        .cold = options.with_cold,
                        .read = options.with_read,
                        .zeros = options.with_zeros,
                        .unrounded = options.with_unrounded_scales,
                        .floor = cases[0].problem.cache.layout != KvLayout::kLatent,
                        .variant = options.batch_invariant,
                        .rmse = std::any_of(cases.begin(), cases.end(), [](auto& c) { return c.rmse; }),
                        .oracle = options.oracle};
  if (columns.rmse) fmt::print("rmse: against float64, up to {} rows a case\n", kSampleRows);
  print_head(columns);

  int exit_code = kRight;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  Progress progress(fmt::format("bench {}", name), static_cast<std::int64_t>(cases.size()));
  for (const BenchCase& c : cases) {
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
    results.push_back(to_json(c, *m, options));
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

void exclude_suite(CLI::App& app) {
  CLI::Option* suite = app.get_option("--suite");
  for (CLI::Option* option : app.get_options()) {
    if (option->get_group() == "Shape") option->excludes(suite);
  }
}

void add_reach_options(CLI::App& app, BenchOptions& options) {
  app.add_option(
         "--reach", options.reach,
         "Tokens that page tables have room for at least, as an engine's have for its longest request; "
         "kernels are picked by it")
      ->check(CLI::Range(1, 1 << 30));
  add_typical_tokens_option(app, options.typical_tokens);
}

void add_bench_options(CLI::App& app, std::span<const BenchSuite> suites, BenchOptions& options) {
  app.add_option("--suite", options.suite,
                 "Many shapes, in place of the one below:" + describe_suites(suites))
      ->check(CLI::IsMember(suite_names(suites)));
  app.add_option("--filter", options.filter, "Only cases whose name contains this");
  app.add_flag("--batch-invariant", options.batch_invariant,
               "With the option batch_invariant on, and what it costs: times each case without it, too");
  app.add_flag(
      "--graph", options.timing.graph,
      "CUDA: replay a graph of up to 20 calls, so that launch gaps are out (suites: for small batches)");
  app.add_option(
         "--layers", options.layers,
         "Time steps as engines run them: a plan and so many calls, on CUDA in a graph; ms is a step's "
         "time over the layers")
      ->check(CLI::Range(1, 1000));
  add_reach_options(app, options);
  app.add_option("--calls-per-plan", options.calls_per_plan,
                 "What the planner is told of how many calls read a plan; 0: many; left out: --layers")
      ->check(CLI::Range(0, 1 << 20));
  app.add_flag("--cold", options.timing.cold, "Empty the caches before each call");
  app.add_flag(
         "--with-cold", options.with_cold,
         "Also time calls before each of which the caches are emptied, by writing 256 MB: one more column")
      ->excludes("--cold");
  app.add_flag("--with-read", options.with_read,
               "CUDA: also time a kernel that only reads the same tokens of the cache: one more column");
  app.add_flag("--with-zeros", options.with_zeros,
               "Also time the call with cleared caches, whose bytes are 0: one more column, over the time of "
               "normal values");
  app.add_flag("--with-unrounded-scales", options.with_unrounded_scales,
               "Also time the call with fp32 scales that are no powers of two, as vLLM writes them: one more "
               "column, over the time of powers of two");
  app.add_option(
         "--deviation", options.deviation,
         "Standard deviation of queries and cached rows, which are normal; left out: 0.1 (suite etap: 1)")
      ->check(number_between(1e-6, 1e6));
  app.add_option("--repeats", options.timing.repeats, "Timed calls; the median is reported")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_flag("--oracle", options.oracle, "CPU: also time the float64 oracle");
  app.add_flag("--rmse", options.rmse, "Compare a sample of rows with the float64 oracle");
  app.add_flag("--explain", options.explain,
               "Why this kernel, and why no other; on CUDA also a column of estimates, in ms");
  app.add_flag("--list", options.list, "Print the cases' names and stop");
  add_executor_options(app, options.executor);
  add_seed_option(app, options.seed);
  add_json_option(app, options.json);
}

}  // namespace flashlatent::tools
