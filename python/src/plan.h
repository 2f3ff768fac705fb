// A library's Plan with its plan storage and workspace at hand.
#pragma once

#include "flashlatent/plan.h"
#include "python/src/decode_arguments.h"
#include "python/src/in_use.h"
#include "python/src/memory.h"

namespace flashlatent::python {

class Plan {
 public:
  /// Raises the errors of flashlatent::Plan::make(). `check_inputs`: of all calls (check.h).
  Plan(const DecodeProblem& problem, const Executor& executor, std::optional<bool> check_inputs = false);

  const flashlatent::Plan& handle() const { return handle_; }
  const DecodeProblem& problem() const { return handle_.problem(); }
  Device device() const { return device_; }
  std::optional<bool> checks_inputs() const { return check_inputs_; }

  /// Plans a step on `stream` into `storage`, or its own, which like's package allocates. A `fresh` storage
  /// is the binding's, not the caller's: see Array::output(). `pages`: for prefixes that requests share.
  void schedule(const PlanLengths& lengths, nb::handle like, nb::handle storage, void* stream,
                bool fresh = false, const HostPages* pages = nullptr);

  bool scheduled() const { return scheduled_; }

  /// One layer: (out, lse). `inputs` are the arguments' arrays. A `fresh` workspace is the binding's.
  nb::tuple decode(const DecodeInputs& inputs, const Fp8Output& out_fp8, DecodeArguments arguments,
                   void* stream, bool fresh_workspace = false);

 private:
  Status plan_into(Memory memory, const PlanLengths& lengths, const HostPages* pages, void* stream) const;

  flashlatent::Plan handle_;
  Device device_;
  std::optional<bool> check_inputs_;
  Buffer plan_;
  Buffer workspace_;
  InUse plan_use_, workspace_use_;
  bool scheduled_ = false;  // into plan_
};

}  // namespace flashlatent::python
