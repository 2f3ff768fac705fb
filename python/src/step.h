// The plans of a step, one for each problem that its layers pose.
#pragma once

#include <memory>
#include <vector>

#include "python/src/plan.h"

namespace flashlatent::python {

/// Options of a decode call that arrays don't tell.
struct StepOptions {
  DecodeProblem::Options options;
  bool default_scale = false;  ///< softmax_scale is 1 / sqrt(qk_dim).
  int v_dim = 512;
  std::optional<int> tokens;                 ///< Ragged: the most query tokens that a request has.
  std::optional<Dtype> sixteen_bits;         ///< See Array::read().
  std::optional<bool> is_fp8;                ///< What the drop-in's caller says of kv_cache.
  std::optional<bool> check_inputs = false;  ///< See check.h.
};

/// The problem of these arrays.
DecodeProblem infer_problem(const DecodeInputs& inputs, const StepOptions& options);

class Step {
 public:
  /// `stateless`: nothing is kept between calls but which kernel a problem gets.
  Step(int threads, std::string kernel, bool stateless)
      : threads_(threads), kernel_(std::move(kernel)), stateless_(stateless) {}

  /// The plan for such a problem on such a device, made when it is first asked for.
  std::shared_ptr<Plan> find(const DecodeProblem& problem, Device device);

  /// Plans where there is no plan yet, then runs one layer: (out, lse).
  nb::tuple decode(const InputHandles& handles, const StepOptions& options, CallerHandles caller,
                   nb::handle stream);

 private:
  /// Forgets plans of another CUDA graph, or of none: a graph makes its own, in memory of its own pool, which
  /// lives as long as the graph and whose plan follows the lengths at each replay.
  void enter(unsigned long long capture);

  int threads_;
  std::string kernel_;
  bool stateless_;
  unsigned long long capture_ = 0;            // the CUDA graph that plans_ were made in; 0: none
  std::vector<std::shared_ptr<Plan>> plans_;  // the last used one last
};

}  // namespace flashlatent::python
