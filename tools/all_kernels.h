// Times a call by every kernel that takes it, alternately: is the picked kernel the fastest?
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/bench_input.h"
#include "runtime/timing.h"

namespace flashlatent::tools {

struct KernelTimes {
  std::string name;  ///< The shape's name.
  std::string picked;
  std::vector<std::pair<std::string, double>> ms;  ///< Milliseconds of a call, by kernel.

  double of(const std::string& kernel) const;
  const std::pair<std::string, double>& best() const;
  /// The picked kernel's time over the best kernel's.
  double loss() const { return of(picked) / best().second; }
};

/// Times steps of a plan and `layers` calls. Where the pick seems behind, the shape is timed again, for
/// longer, and the second time counts.
Result<KernelTimes> time_kernels(const runtime::BenchInput& input, const runtime::TimingOptions& options,
                                 int layers, const Executor& executor);

/// How many picks are within 3 % of the best kernel, and which are not.
std::string to_text(const std::vector<KernelTimes>& shapes);
nlohmann::ordered_json to_json(const std::vector<KernelTimes>& shapes);

}  // namespace flashlatent::tools
