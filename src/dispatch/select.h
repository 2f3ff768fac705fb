// From a problem and an executor to a kernel and its geometry.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashlatent/decode.h"
#include "kernel/decode_kernel.h"

namespace flashlatent {

/// The kernel that a problem gets. The sizes suffice for every kernel that the problem might get at a smaller
/// batch, because callers ask once, at the largest batch.
struct Selection {
  const DecodeKernel* kernel = nullptr;
  schedule::Geometry geometry = {};
  std::int64_t estimate = 0;  ///< The candidate's time of equal lengths.
  prefix::Shape prefix = {};  ///< With 0 requests: no prefixes are shared.
  bool packs = true;          ///< May its plan pack requests into parts?
  std::size_t plan_bytes = 0;
  std::size_t workspace_bytes = 0;
  std::size_t held_bytes = 0;  ///< The end of the plan and of the workspace that plan/held_tokens.h uses.
};

/// The answer of one kernel to a problem.
struct Candidate {
  const DecodeKernel* kernel = nullptr;
  std::string reason = {};           ///< Why it does not take the problem; empty if it does.
  schedule::Geometry geometry = {};  ///< Set if it takes the problem.
  /// The geometry without Options::typical_tokens; sizes go by it.
  schedule::Geometry at_reach = {};
  prefix::Shape prefix = {};     ///< Set if shared prefixes are wanted and the kernel can share them.
  std::string no_prefixes = {};  ///< Why it cannot, if they are wanted.
  /// What a call takes by the geometry, of requests as long as it reaches or as Options::typical_tokens says,
  /// and of requests of which only the longest is; nanoseconds, if the kernel takes the problem. Both are
  /// positive. They do not fall with more requests, tokens or heads as long as the call is cut in the same
  /// way (partition, team, lanes, rounds, parts). Where the way changes, or a round of row tiles is filled
  /// better, those of the picked kernel may fall, but not below half (tests/dispatch_estimates_test.cc).
  schedule::CallTimes times = {};
};

/// The call that a problem is for.
enum class Purpose {
  kDecode,
  kTurns,  ///< Sparse prefill on CUDA: query tokens in turn (DecodeKernel::declines_turns).
};

/// All kernels of the executor's backend, in the table's order. No device is asked: `workers` are its
/// multiprocessors, or CPU threads.
Result<std::vector<Candidate>> candidates(const DecodeProblem& problem, const Executor& executor,
                                          const schedule::Workers& workers,
                                          Purpose purpose = Purpose::kDecode);

/// The candidate with the least cost::expected() time among those that take the problem, the first if several
/// are equal; null if none takes it.
const Candidate* cheapest(const std::vector<Candidate>& candidates);

/// May the candidate's plan pack requests into parts? On the CPU always: planning takes little time beside a
/// call there.
bool packs(const DecodeProblem& problem, const Candidate& candidate, const schedule::Workers& workers);

/// Sizes that callers must bring: enough for any kernel that the problem might get at this batch or a smaller
/// one. With batch_invariant every batch gets `picked`.
struct Sizes {
  std::size_t plan = 0;
  std::size_t workspace = 0;
};
Sizes sizes_of(const DecodeProblem& problem, const std::vector<Candidate>& candidates,
               const Candidate& picked);

/// The kernels that could run this problem on this executor, but for those that run only by name. A benchmark
/// times each.
Result<std::vector<std::string>> kernels_in_question(const DecodeProblem& problem, const Executor& executor);

/// Nanoseconds of a call by the candidate's geometry (CPU: in its kernel's unit) where all requests have
/// `tokens` tokens in the first cache, at most those that the page table or topk reaches to.
std::int64_t estimate_of_equal(const DecodeProblem& problem, const Candidate& candidate,
                               const schedule::Workers& workers, std::int64_t tokens);

/// All kernels that take this problem on this executor, but for the oracle. Unlike kernels_in_question()
/// those that run only by name, too; none if no kernel takes it.
Result<std::vector<std::string>> kernels_that_take(const DecodeProblem& problem, const Executor& executor);

/// kUnsupported, with each kernel's reason to decline: first those of kernels that read caches of this
/// layout, then the names of the others.
Status none_takes(const DecodeProblem& problem, const std::vector<Candidate>& candidates);

/// One line for each kernel that reads caches of this layout: picked, not picked, or its reason to decline.
/// The last line names the other kernels.
std::string explain(const std::vector<Candidate>& candidates);

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
