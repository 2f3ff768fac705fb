// A kernel choice that callers keep. Engines hold one Plan for each problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "flashlatent/backend.h"
#include "flashlatent/decode.h"
#include "flashlatent/plan_description.h"
#include "flashlatent/problem.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// A problem with the kernel, the sizes and the partition that it gets on an executor. Call schedule() once a
/// step and decode() once a layer. A Plan owns no device memory and never changes. Copies are cheap, and
/// several threads may use one Plan at once, each call with a workspace of its own. After a thread's first
/// call schedule() and decode() take no memory from the heap (with HostPages: for up to 2^16 requests), but
/// for the text of an error and the kernel `reference`.
class Plan {
 public:
  /// Errors: kInvalidArgument (a field of the problem out of its range, FLASHLATENT_CHECK_INPUTS),
  /// kUnsupported (no kernel takes it), kUnavailable.
  static Result<Plan> make(const DecodeProblem& problem, const Executor& executor);

  /// The same Plan on another stream (CUDA: cudaStream_t of the executor's device).
  Plan with_stream(void* stream) const { return {choice_, stream, check_inputs_}; }

  /// The same Plan, whose decode() checks lengths and page numbers (check_inputs.h) and refuses a call with
  /// kInvalidArgument before anything is written. On CUDA decode() then waits for the stream, and is refused
  /// while it is captured into a graph. With the environment variable FLASHLATENT_CHECK_INPUTS=1 every call
  /// of the process is checked, also by plain functions, except calls that are captured.
  Plan with_check_inputs(bool check_inputs = true) const { return {choice_, stream_, check_inputs}; }

  const DecodeProblem& problem() const;
  /// The executor that make() got. Calls use its stream unless with_stream() named another one.
  const Executor& executor() const;
  void* stream() const { return stream_; }
  bool checks_inputs() const { return check_inputs_; }
  /// The name of the picked kernel.
  const char* kernel() const;
  /// On CUDA, where the page table reaches far, two kernels may be picked: schedule() then chooses on the
  /// device, and near_kernel() computes calls whose longest request has up to near_tokens() tokens. Null and
  /// 0 if kernel() computes all calls.
  const char* near_kernel() const;
  std::int64_t near_tokens() const;

  /// Upper bounds of the bytes that schedule() and decode() need, for this problem and for smaller batches of
  /// it. They depend on shapes, the device and (CPU) the number of threads, never on lengths.
  std::size_t plan_bytes() const;
  std::size_t workspace_bytes() const;

  /// flashlatent::plan() and flashlatent::decode() (decode.h), without the errors that make() returns.
  Status schedule(const PlanLengths& lengths, Memory plan) const;
  Status schedule(const PlanLengths& lengths, const HostPages& pages, Memory plan) const;
  Status decode(const DecodeInputs& inputs, const DecodeOutputs& outputs, Memory plan,
                Memory workspace) const;

  /// flashlatent::running_kernel().
  Result<std::string> running_kernel(const DecodeInputs& inputs, const DecodeOutputs& outputs) const;

  /// The schedule that schedule() makes for these lengths, without shared prefixes. It is computed on the
  /// host for every backend. `lengths`: as for schedule(), but on the CPU.
  Result<PlanDescription> describe(const PlanLengths& lengths) const;
  /// flashlatent::describe_plan(): reads `plan`, a host copy of what schedule() wrote for these lengths.
  Result<PlanDescription> describe(const PlanLengths& lengths, Memory plan) const;

 private:
  struct Choice;

  Plan(std::shared_ptr<const Choice> choice, void* stream, bool check_inputs)
      : choice_(std::move(choice)), stream_(stream), check_inputs_(check_inputs) {}

  std::shared_ptr<const Choice> choice_;
  void* stream_;
  bool check_inputs_;
};

}  // namespace flashlatent
