// A choice, kept: which kernel a problem gets, and what it needs. Engines hold one object a problem.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "flashlatent/backend.h"
#include "flashlatent/decode.h"
#include "flashlatent/plan_description.h"
#include "flashlatent/problem.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// A problem with the kernel, the sizes and the partition that it gets on an executor. schedule() once a
/// step, decode() once a layer. A Plan owns no device memory and never changes: copies are cheap, and several
/// threads may use one Plan at once, each call with a workspace of its own. schedule() and decode() take no
/// memory from the heap after a thread's first call (with HostPages: for up to 2^16 requests). The exceptions
/// are the text of an error and the kernel `reference`.
class Plan {
 public:
  /// Errors: kInvalidArgument (a field of the problem out of its range), kUnsupported (no kernel takes it),
  /// kUnavailable.
  static Result<Plan> make(const DecodeProblem& problem, const Executor& executor);

  /// The same on another stream (CUDA: cudaStream_t of the executor's device).
  Plan with_stream(void* stream) const { return {choice_, stream}; }

  const DecodeProblem& problem() const;
  /// What make() was given. Its stream is used unless with_stream() named another one.
  const Executor& executor() const;
  void* stream() const { return stream_; }
  /// The name of the kernel that is picked.
  const char* kernel() const;

  /// Upper bounds of what schedule() and decode() must be given, in bytes, for this problem and for smaller
  /// batches of it. They depend on shapes, the device and (CPU) the number of threads, never on lengths.
  std::size_t plan_bytes() const;
  std::size_t workspace_bytes() const;

  /// As flashlatent::plan() and flashlatent::decode() (decode.h), without the errors that make() returns.
  Status schedule(const PlanLengths& lengths, Memory plan) const;
  Status schedule(const PlanLengths& lengths, const HostPages& pages, Memory plan) const;
  Status decode(const DecodeInputs& inputs, const DecodeOutputs& outputs, Memory plan,
                Memory workspace) const;

  /// flashlatent::running_kernel().
  Result<std::string> running_kernel(const DecodeInputs& inputs, const DecodeOutputs& outputs) const;

  /// The partition that schedule() makes of requests of these lengths, without pages. It is planned on the
  /// host for every backend. `lengths` as for schedule(), but on the CPU.
  Result<PlanDescription> describe(const PlanLengths& lengths) const;
  /// As flashlatent::describe_plan(): reads `plan`, a host copy of what schedule() wrote for these lengths.
  Result<PlanDescription> describe(const PlanLengths& lengths, Memory plan) const;

 private:
  struct Choice;

  Plan(std::shared_ptr<const Choice> choice, void* stream) : choice_(std::move(choice)), stream_(stream) {}

  std::shared_ptr<const Choice> choice_;
  void* stream_;
};

}  // namespace flashlatent
