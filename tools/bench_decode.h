// What `bench dense`, `bench sparse` and `bench paged` share: their options, and measuring a list of cases.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/timing.h"
#include "tools/bench_case.h"
#include "tools/command.h"

namespace flashlatent::tools {

struct BenchOptions {
  std::string suite;
  std::string filter;
  runtime::TimingOptions timing;
  int layers = 0;  ///< A step of a plan and so many calls is timed; 0: calls, planned before.
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
};

/// The options of the group "Shape" don't go together with --suite.
void exclude_suite(CLI::App& app);
void add_bench_options(CLI::App& app, std::span<const BenchSuite> suites, BenchOptions& options);

/// Measures those of `cases` that the filter leaves and prints a line each; the exit code. `name` is the
/// subcommand's.
int run_bench_decode(const char* name, std::vector<BenchCase> cases, const BenchOptions& options);

}  // namespace flashlatent::tools
