// A second kernel for short contexts, where the picked one is slow with them. Lengths are in device memory,
// so the plan says there which of the two computes a call (plan/chosen_kernel.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choose/candidates.h"

namespace flashlatent {

/// Takes requests of any length, but is faster than the far kernel only if no request has more than
/// most_tokens.
struct NearCandidate {
  Candidate candidate;
  std::int32_t most_tokens = 0;
};

/// May lengths decide between two kernels? They may in dense calls from plain latent caches under a page
/// table that reaches far, if the executor names no kernel and the batch may decide. Does not depend on the
/// batch.
bool lengths_may_decide(const DecodeProblem& problem, const Executor& executor);

/// The near kernel of a problem of which lengths_may_decide(): of those that are fastest at some length the
/// one beside which calls lose least on the fastest kernel of each length. Empty if a second kernel gains
/// less than its launch costs. `far`: the picked kernel, for requests as long as the page table reaches or as
/// typical_tokens says; longer ones do not count here. `workers`: as for candidates().
Result<std::optional<NearCandidate>> near_candidate(const DecodeProblem& problem, const Executor& executor,
                                                    const schedule::Workers& workers, const Candidate& far);

/// A line for explain() about the near kernel beside the picked one of `list`; empty if there is none.
Result<std::string> explain_near(const DecodeProblem& problem, const Executor& executor,
                                 const schedule::Workers& workers, const std::vector<Candidate>& list);

}  // namespace flashlatent
