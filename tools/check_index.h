// `flashlatent check` for index_topk().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashlatent/backend.h"
#include "runtime/random_index_case.h"
#include "tools/case_choice.h"

namespace flashlatent::tools {

bool is_index_suite(const std::string& suite);

/// The cases of suite index_topk, or `count` random ones of suite random_index_topk.
std::vector<runtime::IndexSpec> index_cases(const std::string& suite, int count, std::uint64_t seed);

struct CheckIndexOptions {
  CaseChoice choice;
  int cases = 200;  ///< In the random suite.
  std::optional<int> max_refused = {};
  std::uint64_t seed = 0;
  bool list = false;
  bool names = false;  ///< Print each case's name before it runs.
  std::string json;
  std::string again;  ///< The command that runs the suite again, without --filter.
};

/// Runs the suite; returns the exit code.
int check_index(const CheckIndexOptions& options, const Executor& executor);

}  // namespace flashlatent::tools
