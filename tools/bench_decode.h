// What `bench dense`, `bench sparse` and `bench paged` have in common: options, and measuring a list of
// cases.
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
  /// The least tokens that a page table has room for; 0: the longest request's tokens.
  int reach = 0;
  int typical_tokens = 0;  ///< DecodeProblem::Options::typical_tokens.
  int layers = 0;          ///< Time a step of a plan and this many calls. 0: time calls, planned before.
  std::optional<int> calls_per_plan;  ///< Not given: `layers`.
  bool with_cold = false;
  bool with_read = false;
  bool with_zeros = false;
  bool with_unrounded_scales = false;
  bool batch_invariant = false;
  bool oracle = false;
  bool rmse = false;
  bool explain = false;
  bool list = false;
  std::uint64_t seed = 0;
  std::optional<float> deviation;  ///< Of the normal inputs; not given: the case's.
  std::string json;
  ExecutorOptions executor;

  /// The case's problem with a page table of this reach and this hint.
  DecodeProblem reaching(DecodeProblem problem) const;
  /// DecodeProblem::Options::calls_per_plan.
  int told_calls_per_plan() const { return calls_per_plan.value_or(layers); }
};

/// A measured case.
struct Measurement {
  runtime::Timing timing;
  runtime::Timing cold;                   // with --with-cold
  runtime::Timing reading, cold_reading;  // with --with-read
  runtime::Timing zeros;                  // with --with-zeros
  runtime::Timing unrounded;              // with --with-unrounded-scales
  std::string kernel;
  bool graph = false;
  double tflops = 0;
  double gbps = 0;
  double floor_ms = 0;  // time of the bytes or operations at the roof
  double roof_pct = 0;
  double oracle_ms = 0;
  double estimate_ms = 0;      // dispatch's estimate for the kernel that ran; 0: it has no unit of time
  double variant_ms = 0;       // with batch_invariant: the time without that option
  runtime::Comparison sample;  // with --rmse
  std::string why;
};

/// Times a case. Its result stays in the input's outputs.
Result<Measurement> measure(const BenchCase& c, runtime::BenchInput& input, const BenchOptions& options,
                            const runtime::Roof& roof, const Executor& executor);
/// A row of a benchmark's results.
nlohmann::ordered_json to_json(const BenchCase& c, const Measurement& m, const BenchOptions& bench);

/// Refuses the options of the group "Shape" together with --suite.
void exclude_suite(CLI::App& app);
void add_reach_options(CLI::App& app, BenchOptions& options);
void add_bench_options(CLI::App& app, std::span<const BenchSuite> suites, BenchOptions& options);

/// Measures the cases that the filter leaves and prints a line for each. Returns the exit code. `name`: the
/// subcommand.
int run_bench_decode(const char* name, std::vector<BenchCase> cases, const BenchOptions& options);

}  // namespace flashlatent::tools
