// What `flashlatent check` says of its cases, and its JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "flashlatent/backend.h"
#include "tools/progress.h"

namespace flashlatent::tools {

enum class Outcome { kRight, kWrong, kRefused };
const char* to_string(Outcome outcome);

/// One run of a suite.
struct CheckedSuite {
  std::string suite;
  std::uint64_t seed = 0;
  std::optional<int> max_refused = {};  ///< --max-refused.
  int known_refusals = 0;               ///< How many cases may be refused without it.
  std::string json;                     ///< A file; empty: none.
};

class CheckReport {
 public:
  explicit CheckReport(std::size_t cases)
      : progress_("check", static_cast<std::int64_t>(cases)), cases_(cases) {}

  /// Prints a case's name before it runs.
  void announce(const std::string& name);
  /// Counts a case, and prints it unless it is right. `shown`: its name in print; `again`: the command that
  /// runs it alone; `row`: of the JSON.
  void add(Outcome outcome, const std::string& shown, const std::string& detail, const std::string& again,
           nlohmann::ordered_json row);
  /// Prints the sums, with `more` behind them, and writes the JSON. Returns the exit code.
  int finish(const CheckedSuite& suite, const Executor& executor, const std::string& more = "");

 private:
  Progress progress_;
  const std::size_t cases_;
  std::int64_t right_ = 0, wrong_ = 0, refused_ = 0;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace flashlatent::tools
