// A case's query in two parts, as engines have it: q without RoPE's columns, and q_rope.
#pragma once

#include "runtime/random_case.h"

namespace flashlatent::runtime {

/// May the problem's query come in two parts?
bool may_split_query(const DecodeProblem& problem);

/// The case's inputs with its query, which is one tensor, as two. `as_engines`: heads are q's outermost
/// dimension, and q_rope is a slice of wider rows, with NaN all around; otherwise both are contiguous.
/// The case owns their memory.
DecodeInputs split_query(RandomCase& random_case, bool as_engines);

}  // namespace flashlatent::runtime
