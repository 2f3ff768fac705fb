// The plans of a step, one for each problem that its layers pose.
#pragma once

#include <memory>
#include <vector>

#include "python/src/plan.h"

namespace flashlatent::python {

class Step {
 public:
  /// `stateless`: nothing is kept between calls but which kernel a problem gets. `calls_per_plan`: how many
  /// calls will read a plan; 0: many. `check_inputs`: of all calls (check.h).
  Step(int threads, std::string kernel, bool stateless, int calls_per_plan, std::optional<bool> check_inputs)
      : threads_(threads),
        kernel_(std::move(kernel)),
        stateless_(stateless),
        calls_per_plan_(calls_per_plan),
        check_inputs_(check_inputs) {}

  int calls_per_plan() const { return calls_per_plan_; }

  /// The plan for such a problem on such a device, made when it is first asked for.
  std::shared_ptr<Plan> find(const DecodeProblem& problem, Device device);

  /// Plans calls of this problem ahead of the first one.
  void schedule(DecodeProblem problem, const PlanLengths& lengths, nb::handle like, Device device,
                void* stream);

  /// Plans where there is no plan yet, then runs one layer: (out, lse).
  nb::tuple decode(DecodeArguments arguments);

 private:
  /// Forgets plans of another CUDA graph, or of none: a graph makes its own, in memory of its own pool, which
  /// lives as long as the graph and whose plan follows the lengths at each replay.
  void enter(unsigned long long capture);

  int threads_;
  std::string kernel_;
  bool stateless_;
  int calls_per_plan_;
  std::optional<bool> check_inputs_;
  unsigned long long capture_ = 0;            // the CUDA graph that plans_ were made in; 0: none
  std::vector<std::shared_ptr<Plan>> plans_;  // the last used one last
};

}  // namespace flashlatent::python
