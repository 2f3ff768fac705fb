// From a problem and an executor, whose device is asked, to a kernel and its geometry.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "choose/candidates.h"
#include "flashlatent/decode.h"
#include "plan/chosen_kernel.h"

namespace flashlatent {

/// The kernel that computes calls whose requests are all short, if that is another one
/// (choose/near_kernel.h).
struct NearKernel {
  const DecodeKernel* kernel = nullptr;  ///< Null: there is none.
  schedule::Geometry geometry = {};
  bool packs = true;
  std::int32_t most_tokens = 0;  ///< The most a request has in calls that it computes.
  /// Where its plan and the choice lie; set wherever lengths_may_decide(), so that sizes do not fall with a
  /// smaller batch.
  schedule::TwoPlans memory{0};
};

/// The kernel that a problem gets. The sizes suffice for every kernel that the problem might get at a smaller
/// batch, because callers ask once, at the largest batch.
struct Selection {
  const DecodeKernel* kernel = nullptr;
  schedule::Geometry geometry = {};
  std::int64_t estimate = 0;  ///< The candidate's time of equal lengths.
  prefix::Shape prefix = {};  ///< With 0 requests: no prefixes are shared.
  bool packs = true;          ///< May its plan pack requests into parts?
  NearKernel near = {};       ///< Beside `kernel`, which is then for long contexts.
  std::size_t plan_bytes = 0;
  std::size_t workspace_bytes = 0;
  std::size_t held_bytes = 0;  ///< The end of the plan and of the workspace that plan/held_tokens.h uses.
};

/// The executor's threads, or its device's multiprocessors with the costs that hold there. From now on no
/// costs can be set (flashlatent/costs.h).
Result<schedule::Workers> workers_of(const Executor& executor);

/// The kernels that could run this problem on this executor, but for those that run only by name. A benchmark
/// times each.
Result<std::vector<std::string>> kernels_in_question(const DecodeProblem& problem, const Executor& executor);

/// All kernels that take this problem on this executor, but for the oracle. Unlike kernels_in_question()
/// those that run only by name, too; none if no kernel takes it.
Result<std::vector<std::string>> kernels_that_take(const DecodeProblem& problem, const Executor& executor);

/// The kernel that the executor names, or else the cheapest one of its backend that takes the problem.
/// kUnsupported, with each kernel's reason, if there is none.
Result<Selection> select(const DecodeProblem& problem, const Executor& executor,
                         Purpose purpose = Purpose::kDecode);

/// flashlatent::explain() for any purpose.
Result<std::string> explain_for(Purpose purpose, const DecodeProblem& problem, const Executor& executor);

/// The kernel that decode() launches with these tensors if `picked` is picked: `picked` or its substitute.
/// kUnsupported if `asked_for` is not empty and names another kernel.
Result<const DecodeKernel*> kernel_of_call(const DecodeKernel& picked, const DecodeProblem& problem,
                                           const DecodeInputs& inputs, const DecodeOutputs& outputs,
                                           std::string_view asked_for);

/// The device of an executor's tensors.
Device device_of(const Executor& executor);

/// Can this executor run on this machine? kInvalidArgument (threads), kUnavailable (the backend) or
/// kUnsupported (no kernel of that name) if not.
Status validate(const Executor& executor);

}  // namespace flashlatent
