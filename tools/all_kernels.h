// A call by every kernel that takes it, turn about: is the picked one the fastest?
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/bench_input.h"
#include "runtime/timing.h"

namespace flashlatent::tools {

struct KernelTimes {
  std::string name;  ///< The shape's.
  std::string picked;
  std::vector<std::pair<std::string, double>> ms;  ///< By kernel: milliseconds of a call.

  double of(const std::string& kernel) const;
  const std::pair<std::string, double>& best() const;
  /// The picked kernel's time over the best one's.
  double loss() const { return of(picked) / best().second; }
};

/// Times steps of a plan and `layers` calls. A pick that seems behind is timed again, for longer, and that
/// counts.
Result<KernelTimes> time_kernels(const runtime::BenchInput& input, const runtime::TimingOptions& options,
                                 int layers, const Executor& executor);

/// How many picks are within 3 % of the best, and which are not.
std::string to_text(const std::vector<KernelTimes>& shapes);
nlohmann::ordered_json to_json(const std::vector<KernelTimes>& shapes);

}  // namespace flashlatent::tools
