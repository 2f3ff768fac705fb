// The hint of how long contexts are: DecodeProblem::Options::typical_tokens.
#pragma once

#include <optional>

#include "flashlatent/problem.h"
#include "plan/schedule.h"

namespace flashlatent {

/// The problem for whose lengths a kernel and its cut are chosen: `problem` with a reach of typical_tokens.
/// Empty if the hint has no effect: it is not given, it is no less than the reach, or the choice must not
/// depend on it (batch_invariant) or cannot (shared prefixes, whose groups depend on the reach).
std::optional<DecodeProblem> typical_problem(const DecodeProblem& problem);

/// `chosen`, the geometry of typical_problem(), changed to take requests of any length up to the reach of
/// `at_reach`, the same kernel's geometry of the problem itself. Returns `at_reach` if the two have different
/// block sizes.
schedule::Geometry with_reach(const schedule::Geometry& chosen, const schedule::Geometry& at_reach);

}  // namespace flashlatent
