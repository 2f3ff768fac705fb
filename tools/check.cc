// flashlatent check: the correctness sweep.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string_view>

#include "core/return_if_error.h"
#include "dispatch/layer_edges.h"
#include "dispatch/sparse_prefill.h"
#include "io/text.h"
#include "runtime/compare.h"
#include "runtime/decode_run.h"
#include "runtime/graph.h"
#include "runtime/layer_edges.h"
#include "runtime/prefill_run.h"
#include "runtime/split_query.h"
#include "runtime/timing.h"
#include "tools/case_choice.h"
#include "tools/check_cases.h"
#include "tools/check_index.h"
#include "tools/check_refusals.h"
#include "tools/check_report.h"
#include "tools/command.h"

namespace flashlatent::tools {

namespace {

struct CheckOptions {
  std::string suite = "quick";
  std::string filter;
  std::string shard = "1/1";
  std::optional<int> cases;
  std::optional<int> max_refused;
  std::uint64_t seed = 0;
  int typical_tokens = 0;
  bool list = false;
  bool names = false;
  std::string after;
  std::string json;
  ExecutorOptions executor;
};

struct CheckResult {
  Outcome outcome = Outcome::kRight;
  std::string detail = {};
  double relative_error = 0;
  std::string kernel = {};  // that ran
};

constexpr int kReruns = 3, kRandomCases = 200;

/// A case that the backend, or the named kernel, does not take is refused; any other error is wrong.
CheckResult failed(const Status& status) {
  const bool refused = status.code() == StatusCode::kUnsupported;
  return {.outcome = refused ? Outcome::kRefused : Outcome::kWrong, .detail = status.message()};
}

/// The executor of a case: by name the kernel that it draws, unless --kernel names one, or the drawn one
/// cannot read the tensors as they lie.
Result<Executor> executor_of(const runtime::CaseSpec& spec, const runtime::RandomCase& random_case,
                             const Executor& executor) {
  if (spec.kernel == 0 || !executor.kernel.empty()) return executor;
  FLASHLATENT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                               kernels_that_take(random_case.problem, executor));
  if (names.empty()) return executor;
  Executor named = executor;
  named.kernel = names[static_cast<std::size_t>(spec.kernel - 1) % names.size()];
  Result<runtime::DecodeRun> run = runtime::DecodeRun::create(random_case.problem, random_case.inputs, named);
  if (!run.ok()) return run.status();
  const Result<std::string> running = running_kernel(run->problem(), run->inputs(), run->outputs(), named);
  return running.status().code() == StatusCode::kUnsupported ? executor : named;
}

/// Plans and decodes as the case says: by a plan for its lengths, by one for other lengths, or as a graph
/// that has run with other lengths.
class CaseRun {
 public:
  CaseRun(const runtime::CaseSpec& spec, const runtime::RandomCase& random_case, runtime::DecodeRun& run)
      : in_graph_(spec.graph && run.handle().executor().backend == Backend::kCuda),
        others_(spec.other_lengths && (in_graph_ || !spec.batch_invariant)),
        other_(random_case.other_lengths),
        own_(lengths_of(random_case.problem, random_case.inputs)),
        run_(run) {}

  Status prepare() {
    if (!in_graph_) return {};
    FLASHLATENT_RETURN_IF_ERROR(run_.set_lengths(other_));
    FLASHLATENT_RETURN_IF_ERROR(run_.run());
    FLASHLATENT_RETURN_IF_ERROR(graph_.capture([this] { return run_.run(); }, run_.handle().stream()));
    return graph_.launch(run_.handle().stream());
  }

  Status call() {
    if (!others_) return run_.run();
    if (!in_graph_) {
      FLASHLATENT_RETURN_IF_ERROR(run_.set_lengths(other_));
      FLASHLATENT_RETURN_IF_ERROR(run_.plan());
    }
    FLASHLATENT_RETURN_IF_ERROR(run_.set_lengths(own_));
    return in_graph_ ? graph_.launch(run_.handle().stream()) : run_.decode();
  }

 private:
  bool in_graph_;  // it plans anew for its lengths
  bool others_;
  const PlanLengths& other_;
  PlanLengths own_;
  runtime::DecodeRun& run_;
  runtime::Graph graph_;
};

/// The case's inputs with the query in the other form: two tensors for one, or one for two.
DecodeInputs in_other_form(const runtime::CaseSpec& spec, std::uint64_t seed, runtime::RandomCase& made) {
  if (!spec.split_query) return runtime::split_query(made, true);
  runtime::CaseSpec other = spec;
  other.split_query = false;
  runtime::RandomCase joined = runtime::make_case(other, seed);
  const DecodeInputs inputs = runtime::without_edges(joined).inputs;
  for (auto& memory : joined.storage) made.storage.push_back(std::move(memory));
  return inputs;
}
constexpr const char* kRerunsDiffer = "two runs on the same inputs differ";
constexpr const char* kFormsDiffer = "the query as one tensor and as two give different bits";

/// Runs a case with its edges three times from poisoned outputs. The runs must have the same bits, and must
/// agree with `plain`, what the same kernel wrote without edges. Returns what is wrong.
std::string check_edges(const runtime::CaseSpec& spec, const runtime::RandomCase& random_case,
                        const runtime::DecodeRun& plain, const std::string& kernel, Executor executor) {
  executor.kernel = kernel;  // edges may change what is picked
  Result<runtime::DecodeRun> run = runtime::DecodeRun::create(random_case.problem, random_case.inputs,
                                                              executor, runtime::request_of(spec.edges));
  if (!run.ok()) return run.status().message();
  CaseRun calls(spec, random_case, *run);
  if (const Status status = calls.prepare(); !status.ok()) return status.message();
  std::vector<std::uint8_t> bytes;
  for (int i = 0; i < kReruns; ++i) {
    if (const Status status = run->poison(); !status.ok()) return status.message();
    if (const Status status = calls.call(); !status.ok()) return status.message();
    if (const Status status = run->fetch(); !status.ok()) return status.message();
    std::vector<std::uint8_t> now = run->lse_bytes();
    if (spec.edges.keeps_out) now.insert(now.end(), run->out_bytes().begin(), run->out_bytes().end());
    now.insert(now.end(), run->fp8_bytes().begin(), run->fp8_bytes().end());
    if (i > 0 && now != bytes) return "two runs with edges on the same inputs differ";
    bytes = std::move(now);
  }
  const Result<Selection> selection = select(run->problem(), executor);
  if (!selection.ok()) return selection.status().message();
  const FusedEdges fused = fused_edges(*selection, run->problem(), run->inputs(), run->outputs());
  return runtime::compare_edges(random_case.inputs, {run->out(), run->lse(), run->fp8()},
                                {plain.out(), plain.lse(), {}}, !fused.output);
}

/// Runs a case three times from poisoned outputs. The runs must have the same bits, and must agree with the
/// oracle. A query that may come in two parts is then run in the other form, which must have the same bits
/// where the same kernel runs.
CheckResult check_case(const runtime::CaseSpec& spec, const CheckOptions& options,
                       const Executor& all_cases) {
  runtime::RandomCase with_edges = runtime::make_case(spec, options.seed);
  with_edges.problem.options.typical_tokens = options.typical_tokens;
  runtime::RandomCase random_case = runtime::without_edges(with_edges);
  const Result<Executor> executor = executor_of(spec, random_case, all_cases);
  if (!executor.ok()) return failed(executor.status());
  Result<runtime::DecodeRun> run =
      runtime::DecodeRun::create(random_case.problem, random_case.inputs, *executor);
  if (!run.ok()) return failed(run.status());
  const Result<std::string> kernel = running_kernel(run->problem(), run->inputs(), run->outputs(), *executor);
  if (!kernel.ok()) return failed(kernel.status());
  const auto wrong = [&](const std::string& why) {
    return CheckResult{.outcome = Outcome::kWrong, .detail = why, .kernel = *kernel};
  };
  CaseRun calls(spec, random_case, *run);
  if (const Status status = calls.prepare(); !status.ok()) return wrong(status.message());
  std::vector<std::uint8_t> out, lse;
  for (int i = 0; i < kReruns; ++i) {
    if (const Status status = run->poison(); !status.ok()) return wrong(status.message());
    if (const Status status = calls.call(); !status.ok()) return wrong(status.message());
    if (const Status status = run->fetch(); !status.ok()) return wrong(status.message());
    if (i > 0 && (out != run->out_bytes() || lse != run->lse_bytes())) {
      return wrong(kRerunsDiffer);
    }
    out = run->out_bytes();
    lse = run->lse_bytes();
  }
  // By a plan for other lengths sums have another order.
  if (runtime::may_split_query(random_case.problem) && !spec.other_lengths) {
    const DecodeInputs inputs = in_other_form(spec, options.seed, random_case);
    Result<runtime::DecodeRun> other = runtime::DecodeRun::create(random_case.problem, inputs, *executor);
    if (!other.ok()) return {Outcome::kWrong, other.status().message()};
    const Result<std::string> by =
        running_kernel(other->problem(), other->inputs(), other->outputs(), *executor);
    if (!by.ok() && by.status().code() != StatusCode::kUnsupported) {
      return {Outcome::kWrong, by.status().message()};
    }
    if (by.ok() && *by == *kernel) {
      for (const Status& status : {other->run(), other->fetch()}) {
        if (!status.ok()) return {Outcome::kWrong, status.message()};
      }
      if (out != other->out_bytes() || lse != other->lse_bytes()) return {Outcome::kWrong, kFormsDiffer};
    }
  }
  const runtime::Comparison comparison =
      runtime::compare(random_case.problem, random_case.inputs, run->out(), run->lse());
  if (comparison.ok() && spec.edges.present()) {
    if (const std::string why = check_edges(spec, with_edges, *run, *kernel, *executor); !why.empty()) {
      return wrong(why);
    }
  }
  return {comparison.ok() ? Outcome::kRight : Outcome::kWrong, runtime::to_string(comparison),
          comparison.relative_error, *kernel};
}

/// Runs a sparse prefill three times from poisoned outputs. Returns what is wrong: an error, or other bits.
std::string run_prefill(runtime::PrefillRun& run) {
  std::vector<std::uint8_t> bytes, fp8;
  for (int i = 0; i < kReruns; ++i) {
    for (const Status& status : {run.poison(), run.run(), run.fetch()}) {
      if (!status.ok()) return status.message();
    }
    if (i > 0 && (bytes != run.bytes() || fp8 != run.fp8_bytes())) return kRerunsDiffer;
    bytes = run.bytes();
    fp8 = run.fp8_bytes();
  }
  return {};
}

/// check_edges() of a sparse prefill.
std::string check_prefill_edges(const runtime::CaseSpec& spec, const runtime::RandomCase& random_case,
                                const SparsePrefillOptions& plain_options, const runtime::PrefillRun& plain,
                                const std::string& kernel, Executor executor) {
  executor.kernel = kernel;
  SparsePrefillOptions options = runtime::prefill_options(random_case.problem);
  options.max_logits = plain_options.max_logits;
  Result<runtime::PrefillRun> run = runtime::PrefillRun::create(
      runtime::prefill_inputs(random_case.inputs), options, executor, runtime::request_of(spec.edges));
  if (!run.ok()) return run.status().message();
  if (std::string why = run_prefill(*run); !why.empty()) return "with edges: " + why;
  const Result<FusedEdges> fused = sparse_prefill_edges(run->inputs(), run->outputs(), options, executor);
  if (!fused.ok()) return fused.status().message();
  return runtime::compare_prefill_edges(random_case.inputs, run->results(), plain.results(), !fused->output);
}

/// The same for sparse prefill, with max_logits or without.
CheckResult check_prefill(const runtime::CaseSpec& spec, std::uint64_t seed, const Executor& executor,
                          bool max_logits) {
  runtime::RandomCase with_edges = runtime::make_case(spec, seed);
  runtime::RandomCase random_case = runtime::without_edges(with_edges);
  const SparsePrefillInputs inputs = runtime::prefill_inputs(random_case.inputs);
  SparsePrefillOptions options = runtime::prefill_options(random_case.problem);
  options.max_logits = max_logits;
  Result<runtime::PrefillRun> run = runtime::PrefillRun::create(inputs, options, executor);
  if (!run.ok()) return failed(run.status());
  const Result<std::string> kernel = sparse_prefill_kernel(run->inputs(), run->outputs(), options, executor);
  if (!kernel.ok()) return failed(kernel.status());
  const auto wrong = [&](const std::string& why) {
    return CheckResult{.outcome = Outcome::kWrong,
                       .detail = max_logits ? why : "without max_logits: " + why,
                       .kernel = *kernel};
  };
  if (const std::string why = run_prefill(*run); !why.empty()) return wrong(why);
  if (runtime::may_split_query(random_case.problem)) {
    Result<runtime::PrefillRun> other = runtime::PrefillRun::create(
        runtime::prefill_inputs(in_other_form(spec, seed, random_case)), options, executor);
    if (!other.ok()) return wrong(other.status().message());
    for (const Status& status : {other->run(), other->fetch()}) {
      if (!status.ok()) return wrong(status.message());
    }
    if (run->bytes() != other->bytes()) return wrong(kFormsDiffer);
  }
  const Result<runtime::Comparison> comparison = runtime::compare_prefill(inputs, options, run->results());
  if (!comparison.ok()) return failed(comparison.status());
  if (!comparison->ok()) return wrong(runtime::to_string(*comparison));
  if (spec.edges.present()) {
    const std::string why = check_prefill_edges(spec, with_edges, options, *run, *kernel, executor);
    if (!why.empty()) return wrong(why);
  }
  return {Outcome::kRight, runtime::to_string(*comparison), comparison->relative_error, *kernel};
}

/// Sparse prefill with max_logits, and without, which more kernels take.
CheckResult check_prefill(const runtime::CaseSpec& spec, std::uint64_t seed, const Executor& executor) {
  CheckResult without = check_prefill(spec, seed, executor, false);
  if (without.outcome != Outcome::kRight) return without;
  CheckResult with = check_prefill(spec, seed, executor, true);
  return with.outcome == Outcome::kRefused ? without : with;
}

/// --shard I/N: every N-th case from the I-th on.
struct Shard {
  std::size_t first = 0, of = 1;
};
std::optional<Shard> parse_shard(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return std::nullopt;
  const auto first = io::parse_integer(std::string_view(text).substr(0, slash));
  const auto of = io::parse_integer(std::string_view(text).substr(slash + 1));
  if (!first || !of || *first < 1 || *first > *of) return std::nullopt;
  return Shard{static_cast<std::size_t>(*first - 1), static_cast<std::size_t>(*of)};
}

/// The command that runs the suite again, without --filter.
std::string suite_again(const CheckOptions& options, Backend backend) {
  std::string command = fmt::format("flashlatent check --suite {} --backend {} --seed {}", options.suite,
                                    to_string(backend), options.seed);
  if (!options.executor.kernel.empty()) command += " --kernel " + options.executor.kernel;
  if (options.cases) command += fmt::format(" --cases {}", *options.cases);
  if (options.typical_tokens > 0) command += fmt::format(" --typical-tokens {}", options.typical_tokens);
  return command;
}

/// The command that runs one case again.
std::string again(const CheckOptions& options, const std::string& name, Backend backend) {
  return suite_again(options, backend) + fmt::format(" --filter '{}'", name);
}

int run_check_index(const CheckOptions& options, const CaseChoice& choice) {
  if (options.typical_tokens > 0) {
    return fail(
        {StatusCode::kInvalidArgument,
         fmt::format("--typical-tokens is {}, but the suite is {}, which is no attention; leave it out",
                     options.typical_tokens, options.suite)});
  }
  const Result<Executor> executor = options.list ? Executor{} : make_executor(options.executor);
  if (!executor.ok()) return fail(executor.status());
  return check_index({.choice = choice,
                      .cases = options.cases.value_or(kRandomCases),
                      .max_refused = options.max_refused,
                      .seed = options.seed,
                      .list = options.list,
                      .names = options.names,
                      .json = options.json,
                      .again = suite_again(options, executor->backend)},
                     *executor);
}

int run_check(const CheckOptions& options) {
  if (options.cases && !is_random_suite(options.suite) && options.suite != "random_index_topk") {
    return fail({StatusCode::kInvalidArgument,
                 fmt::format("--cases is {}, but the suite is {}; it is for the random suites",
                             *options.cases, options.suite)});
  }
  const std::optional<Shard> shard = parse_shard(options.shard);
  if (!shard) {
    return fail({StatusCode::kInvalidArgument,
                 fmt::format("--shard is '{}'; I/N with I from 1 to N is accepted", options.shard)});
  }
  const CaseChoice choice = {options.suite, options.filter, shard->first, shard->of, options.after};
  if (is_index_suite(options.suite)) return run_check_index(options, choice);
  std::vector<runtime::CaseSpec> cases =
      check_cases(options.suite, options.cases.value_or(kRandomCases), options.seed);
  const Status chosen = choose_cases(cases, choice);
  if (!chosen.ok()) return fail(chosen);
  if (options.list) {
    for (const runtime::CaseSpec& spec : cases) fmt::print("{}\n", spec.name);
    return kRight;
  }
  Result<Executor> executor = make_executor(options.executor);
  if (!executor.ok()) return fail(executor.status());
  // The default stream cannot be captured.
  Result<runtime::Stream> stream = runtime::Stream::create(*executor);
  if (!stream.ok()) return fail(stream.status());
  executor->stream = stream->get();

  CheckReport report(cases.size());
  std::optional<double> worst_error[2];  // of bf16 and fp16; empty: no case had it
  for (const runtime::CaseSpec& spec : cases) {
    if (options.names) report.announce(spec.name);
    const CheckResult result =
        spec.prefill ? check_prefill(spec, options.seed, *executor) : check_case(spec, options, *executor);
    if (result.outcome != Outcome::kRefused) {
      std::optional<double>& worst = worst_error[spec.dtype == Dtype::kF16];
      worst = std::max(worst.value_or(0), result.relative_error);
    }
    const bool shows_kernel = result.outcome == Outcome::kWrong && !result.kernel.empty();
    report.add(result.outcome, shows_kernel ? spec.name + ", " + result.kernel : spec.name, result.detail,
               again(options, spec.name, executor->backend),
               {{"name", spec.name},
                {"kernel", result.kernel},
                {"outcome", to_string(result.outcome)},
                {"relative_error", result.relative_error},
                {"detail", result.detail}});
  }
  std::string errors;
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    const std::optional<double>& worst = worst_error[dtype == Dtype::kF16];
    if (!worst) continue;
    errors += fmt::format("{}{} {:.2e}", errors.empty() ? "; largest relative error " : ", ",
                          to_string(dtype), *worst);
  }
  return report.finish(
      {.suite = options.suite,
       .seed = options.seed,
       .max_refused = options.max_refused,
       .known_refusals = known_refusals(options.suite, executor->backend, options.executor.kernel),
       .json = options.json},
      *executor, errors);
}

}  // namespace

void add_check(CLI::App& app, Action& action) {
  CLI::App* check =
      app.add_subcommand("check", "Sweep over many cases and compare each with the float64 oracle");
  auto options = std::make_shared<CheckOptions>();
  check
      ->add_option("--suite", options->suite,
                   "small (some 12 s on two cores), quick or full; sparse_prefill: those of full; random: "
                   "shapes and options by --seed; random_separate: likewise, of separate keys and values, "
                   "several query tokens and large groups; random_sparse_prefill: likewise; "
                   "random_shards: random and random_separate, of contexts that ranks share; index_topk, "
                   "random_index_topk: the indexer")
      ->check(CLI::IsMember({"small", "quick", "full", "sparse_prefill", "random", "random_separate",
                             "random_sparse_prefill", "random_shards", "index_topk", "random_index_topk"}))
      ->capture_default_str();
  check
      ->add_option("--cases", options->cases,
                   fmt::format("Of a random suite, how many; left out: {}", kRandomCases))
      ->check(CLI::Range(1, 1'000'000));
  check
      ->add_option("--max-refused", options->max_refused,
                   "Fail if more cases are refused; left out: as many as the suite is known to have that the "
                   "backend or the kernel does not take (random suites: 0), but not all")
      ->check(CLI::Range(0, 1'000'000));
  check->add_option("--filter", options->filter, "Only cases whose name contains this");
  check->add_option("--shard", options->shard, "I/N: only every N-th of them from the I-th on")
      ->capture_default_str();
  add_typical_tokens_option(*check, options->typical_tokens);
  check->add_flag("--names", options->names, "Print each case's name before it runs");
  check->add_option("--after", options->after, "NAME: only the cases that come after this one, of the shard");
  check->add_flag("--list", options->list, "Print the cases' names and stop");
  add_executor_options(*check, options->executor);
  add_seed_option(*check, options->seed);
  add_json_option(*check, options->json);
  check->footer(
      "Each case runs three times on poisoned outputs; the three must agree bit for bit. So must a query of "
      "576 or 320 columns as one tensor and as two. Exit code 1 if "
      "any case is wrong, or more are refused than --max-refused; these are listed with their reasons.\n"
      "Example: flashlatent check --suite full --backend cuda --json check.json");
  check->callback([&action, options] { action = [options] { return run_check(*options); }; });
}

}  // namespace flashlatent::tools
