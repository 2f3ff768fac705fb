// Which kernels take a problem, how each would cut a call, and which is the fastest. Nothing here asks a
// device.
#pragma once

#include <string>
#include <vector>

#include "choose/cutters.h"

namespace flashlatent {

/// The answer of one kernel to a problem.
struct Candidate {
  const DecodeKernel* kernel = nullptr;
  const choose::Cutter* cutter = nullptr;  ///< The kernel's cutter.
  std::string reason = {};                 ///< Why it does not take the problem; empty if it does.
  schedule::Geometry geometry = {};        ///< Set if it takes the problem.
  /// The geometry without Options::typical_tokens, from which sizes follow.
  schedule::Geometry at_reach = {};
  prefix::Shape prefix = {};     ///< Set if shared prefixes are wanted and the kernel can share them.
  std::string no_prefixes = {};  ///< Why it cannot, if they are wanted.
  /// Two times of a call of this geometry, in nanoseconds, if the kernel takes the problem: with all requests
  /// as long as the page table reaches or as Options::typical_tokens says, and with only the longest so long.
  /// Both are positive. They do not fall with more requests, tokens or heads as long as the call is cut in
  /// the same way (partition, team, lanes, rounds, parts). Where the way changes, or row tiles fill a round
  /// better, the picked kernel's times may fall, but not below half (tests/dispatch_estimates_test.cc).
  schedule::CallTimes times = {};
};

/// The call that a problem is for.
enum class Purpose {
  kDecode,
  // Sparse prefill on CUDA, by Partition::kTurns (DecodeKernel::declines_turns):
  kTurns,           ///< ... without the largest scores.
  kTurnsMaxLogits,  ///< ... and the largest scores.
};

inline bool is_in_turn(Purpose purpose) {
  return purpose != Purpose::kDecode;
}

/// All kernels of the executor's backend, in the table's order. `workers` are the device's multiprocessors,
/// or CPU threads; the device is not asked.
Result<std::vector<Candidate>> candidates(const DecodeProblem& problem, const Executor& executor,
                                          const schedule::Workers& workers,
                                          Purpose purpose = Purpose::kDecode);

/// The candidate with the least cost::expected() time among those that take the problem, the first if several
/// are equal; null if none takes it.
const Candidate* cheapest(const std::vector<Candidate>& candidates);

/// May the candidate's plan pack requests into parts? On the CPU always: there planning takes little time
/// beside a call.
bool packs(const DecodeProblem& problem, const Candidate& candidate, const schedule::Workers& workers);

/// Sizes of the memory that callers must bring: enough for any kernel that the problem might get at this
/// batch or a smaller one. With batch_invariant every batch gets the kernel `picked`.
struct Sizes {
  std::size_t plan = 0;
  std::size_t workspace = 0;
};
Sizes sizes_of(const DecodeProblem& problem, const std::vector<Candidate>& candidates,
               const Candidate& picked);

/// Nanoseconds of a call by the candidate's geometry (CPU: in its kernel's unit) where all requests have
/// `tokens` tokens in the first cache, at most those that the page table or topk reaches to.
std::int64_t estimate_of_equal(const DecodeProblem& problem, const Candidate& candidate,
                               const schedule::Workers& workers, std::int64_t tokens);

/// kUnsupported, with each kernel's reason to decline: first those of kernels that read caches of this
/// layout, then the names of the others.
Status none_takes(const DecodeProblem& problem, const std::vector<Candidate>& candidates);

/// One line for each kernel that reads caches of this layout: picked, not picked, or its reason to decline.
/// The last line names the other kernels.
std::string explain(const std::vector<Candidate>& candidates);

/// Is there a kernel of the name that the executor asks for?
Status validate_kernel_name(const Executor& executor);

}  // namespace flashlatent
