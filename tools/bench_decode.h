// What `bench dense`, `bench sparse` and `bench paged` share: their options, and measuring a list of cases.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/bench_input.h"
#include "runtime/compare.h"
#include "runtime/roof.h"
#include "runtime/timing.h"
#include "tools/bench_case.h"
#include "tools/command.h"

namespace flashlatent::tools {

struct BenchOptions {
  std::string suite;
  std::string filter;
  runtime::TimingOptions timing;
  int reach = 0;   ///< Tokens that a page table has room for at least; 0: as many as the longest request has.
  int layers = 0;  ///< A step of a plan and so many calls is timed; 0: calls, planned before.
  std::optional<int> calls_per_plan;  ///< Left out: `layers`.
  bool with_cold = false;
  bool with_read = false;
  bool batch_invariant = false;
  bool oracle = false;
  bool rmse = false;
  bool explain = false;
  bool list = false;
  std::uint64_t seed = 0;
  std::string json;
  ExecutorOptions executor;

  /// The case's problem with a page table of this reach.
  DecodeProblem reaching(DecodeProblem problem) const;
  /// DecodeProblem::Options::calls_per_plan.
  int told_calls_per_plan() const { return calls_per_plan.value_or(layers); }
};

/// A measured case.
struct Measurement {
  runtime::Timing timing;
  runtime::Timing cold;                   // with --with-cold
  runtime::Timing reading, cold_reading;  // with --with-read
  std::string kernel;
  bool graph = false;
  double tflops = 0;
  double gbps = 0;
  double floor_ms = 0;  // what bytes or operations need at the roof
  double roof_pct = 0;
  double oracle_ms = 0;
  double estimate_ms = 0;      // what dispatch counts the kernel that ran to take; 0: in no unit of time
  double variant_ms = 0;       // with batch_invariant: the time without it
  runtime::Comparison sample;  // with --rmse
  std::string why;
};

/// Times a case; leaves its result in the input's outputs.
Result<Measurement> measure(const BenchCase& c, runtime::BenchInput& input, const BenchOptions& options,
                            const runtime::Roof& roof, const Executor& executor);
/// A row of a benchmark's results.
nlohmann::ordered_json to_json(const BenchCase& c, const Measurement& m, const BenchOptions& bench);

/// The options of the group "Shape" don't go together with --suite.
void exclude_suite(CLI::App& app);
void add_reach_option(CLI::App& app, int& reach);
void add_bench_options(CLI::App& app, std::span<const BenchSuite> suites, BenchOptions& options);

/// Measures those of `cases` that the filter leaves and prints a line each; the exit code. `name` is the
/// subcommand's.
int run_bench_decode(const char* name, std::vector<BenchCase> cases, const BenchOptions& options);

}  // namespace flashlatent::tools
