// From a problem and an executor to a kernel and its schedule geometry.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashlatent/decode.h"
#include "kernel/decode_kernel.h"

namespace flashlatent {

/// The kernel that a problem gets. The sizes are what callers must bring: enough for any kernel that the
/// problem might get at a smaller batch, since they are asked for once, at the largest.
struct Selection {
  const DecodeKernel* kernel = nullptr;
  schedule::Geometry geometry = {};
  prefix::Shape prefix = {};  ///< Without requests: they share no prefixes.
  bool packs = true;          ///< Does its plan pack requests into parts, where they may be?
  std::size_t plan_bytes = 0;
  std::size_t workspace_bytes = 0;
  std::size_t held_bytes = 0;  ///< The last of either: plan/held_tokens.h.
};

/// One kernel's answer to a problem.
struct Candidate {
  const DecodeKernel* kernel = nullptr;
  std::string reason = {};           ///< Why it does not take the problem; empty if it does.
  schedule::Geometry geometry = {};  ///< If it does.
  prefix::Shape prefix = {};         ///< Then of shared prefixes, if it takes those and they are wanted.
  std::string no_prefixes = {};      ///< If they are wanted and it does not take them: why.
  /// Then schedule::estimate() of it: positive, and with more requests, tokens or heads no less, as long as
  /// the call is shared out in the same way (partition, team, lanes, rounds, parts). Where it goes over
  /// to another way, or fills a round of row tiles better, the estimate of the picked kernel may fall, but
  /// not below half. tests/dispatch_estimates_test.cc says more.
  std::int64_t estimate = 0;
};

/// What a problem is wanted for.
enum class Purpose {
  kDecode,
  kTurns,  ///< Sparse prefill on CUDA: query tokens in turn (DecodeKernel::turns).
};

/// All kernels of the executor's backend, in the table's order. Asks no device: `workers` are its
/// multiprocessors, or threads.
Result<std::vector<Candidate>> candidates(const DecodeProblem& problem, const Executor& executor,
                                          const schedule::Workers& workers,
                                          Purpose purpose = Purpose::kDecode);

/// The one of least estimate among those that take the problem, the first of equals; null if none does.
const Candidate* cheapest(const std::vector<Candidate>& candidates);

/// Is this one's plan packed where lengths ask for it, on these workers? On the CPU always: there planning is
/// little beside a call.
bool packs(const DecodeProblem& problem, const Candidate& candidate, const schedule::Workers& workers);

/// What callers must bring: enough for any kernel that the problem might get at this batch or a smaller one.
/// With batch_invariant every batch gets `picked`.
struct Sizes {
  std::size_t plan = 0;
  std::size_t workspace = 0;
};
Sizes sizes_of(const DecodeProblem& problem, const std::vector<Candidate>& candidates,
               const Candidate& picked);

/// The kernels that this problem could be given on this executor, for a benchmark of all: not those that run
/// only by name.
Result<std::vector<std::string>> kernels_in_question(const DecodeProblem& problem, const Executor& executor);

/// kUnsupported with why each kernel declined.
Status none_takes(const DecodeProblem& problem, const std::vector<Candidate>& candidates);

/// A line a kernel: picked, or why not.
std::string explain(const std::vector<Candidate>& candidates);

/// The cheapest kernel of the executor's backend that takes the problem, or the one that the executor names;
/// otherwise kUnsupported with why each kernel declined.
Result<Selection> select(const DecodeProblem& problem, const Executor& executor,
                         Purpose purpose = Purpose::kDecode);

/// flashlatent::explain() for any purpose.
Result<std::string> explain_for(Purpose purpose, const DecodeProblem& problem, const Executor& executor);

/// The kernel that decode() launches with these tensors where `picked` is picked: that, or its substitute.
/// kUnsupported if that is another one than `asked_for`, unless that is empty.
Result<const DecodeKernel*> kernel_of_call(const DecodeKernel& picked, const DecodeProblem& problem,
                                           const DecodeInputs& inputs, const DecodeOutputs& outputs,
                                           std::string_view asked_for);

/// Where an executor's tensors must be.
Device device_of(const Executor& executor);

/// Can this executor run here at all?
Status validate(const Executor& executor);

}  // namespace flashlatent
