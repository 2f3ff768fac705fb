// The shapes that `bench dense`, `bench sparse` and `bench paged` measure, single ones and suites.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "flashlatent/problem.h"
#include "runtime/bench_input.h"

namespace flashlatent::tools {

struct BenchCase {
  std::string name = {};
  /// Without batch and max_pages, which follow from the lengths; sparse: from each request's cache.
  DecodeProblem problem;
  int mean_length = 0;
  std::string distribution = "uniform";  ///< "uniform", "normal" or "list".
  std::vector<int> lengths = {};
  int shared_tokens = 0;  ///< Tokens that all requests begin with.
  int extra_tokens = 0;   ///< Tokens of each request in the extra cache, if the problem has one.
  bool graph = false;
  float deviation = 0.1F;  ///< Standard deviation of queries and cached rows, which are normal.
  bool rmse = false;       ///< Compare a sample of rows with the oracle.
  /// Sparse prefill: one request's query tokens, which attend to the tokens of the cache. A plain cache with
  /// pages of one token is contiguous rows.
  bool prefill = false;
  bool max_logits = true;  ///< Does sparse prefill find the largest scores?
  runtime::BenchEdges edges = {};
};

/// `batch` lengths: all `mean`; or "normal" with standard deviation mean / 2 and at least `least`. Normal
/// lengths are the distribution's quantiles in random order, so that their sum does not depend on luck.
std::vector<int> make_lengths(const std::string& distribution, int batch, int mean, int least);

/// The case's name, unique in its suite: "b128 s_q1 h16 s_k4096 uniform", "b128 s_q1 h16 topk2048 page16
/// fp16", "b128 s_q2 h64 topk128 page256 extra512 page64".
std::string name_of(const BenchCase& c);

struct BenchSuite {
  const char* name;
  const char* what;
  std::vector<BenchCase> (*cases)();
};
std::span<const BenchSuite> dense_suites();
std::span<const BenchSuite> sparse_suites();

std::vector<std::string> suite_names(std::span<const BenchSuite> suites);
/// One line for each suite, for --help.
std::string describe_suites(std::span<const BenchSuite> suites);
/// The cases of the suite of that name.
std::vector<BenchCase> suite_cases(std::span<const BenchSuite> suites, const std::string& name);

}  // namespace flashlatent::tools
