// What `bench dense` measures: shapes, one by one and in suites.
#pragma once

#include <string>
#include <vector>

#include "flashlatent/problem.h"

namespace flashlatent::tools {

struct BenchCase {
  std::string name = {};
  DecodeProblem problem;  ///< batch and max_pages follow from the lengths.
  int mean_length = 0;
  std::string distribution = "uniform";  ///< "uniform", "normal" or "list".
  std::vector<int> lengths = {};
  bool graph = false;
  float deviation = 0.1F;  ///< Of queries and cached rows, which are normal.
  bool rmse = false;       ///< Compare a sample of rows with the oracle.
};

/// `batch` lengths: all `mean`, or "normal" with deviation mean / 2 and at least `least`. The normal ones are
/// the distribution's quantiles in random order, so that their sum is no matter of luck.
std::vector<int> make_lengths(const std::string& distribution, int batch, int mean, int least);

const std::vector<std::string>& bench_suites();
/// One line on each suite, for --help.
std::string describe_bench_suites();
std::vector<BenchCase> bench_suite(const std::string& name);

}  // namespace flashlatent::tools
