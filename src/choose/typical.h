// The hint of how long contexts are: DecodeProblem::Options::typical_tokens.
#pragma once

#include <optional>

#include "flashlatent/problem.h"
#include "plan/schedule.h"

namespace flashlatent {

/// The problem for whose lengths a kernel and its cut are chosen: `problem` with a reach of as many tokens as
/// the hint says. Empty where the hint has no effect: there is none, it is no less than the reach, or the
/// choice must not depend on it (batch_invariant) or cannot (shared prefixes, whose groups go by the reach).
std::optional<DecodeProblem> typical_problem(const DecodeProblem& problem);

/// `chosen`, the geometry of typical_problem(), for requests of any length up to the reach of `at_reach`, the
/// same kernel's geometry of the problem itself. at_reach, if the two count tokens in other blocks.
schedule::Geometry with_reach(const schedule::Geometry& chosen, const schedule::Geometry& at_reach);

}  // namespace flashlatent
