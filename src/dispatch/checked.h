// Checks of a call's integers as part of the call.
#pragma once

#include "flashlatent/decode.h"

namespace flashlatent {

/// Refuses the first offence (check_inputs.h) where `wanted` or FLASHLATENT_CHECK_INPUTS say that calls are
/// checked; of a CUDA stream it waits for that. While the stream is captured into a CUDA graph a `wanted`
/// check is refused, and the environment's is left out. `inputs` fit the problem.
Status check_call(bool wanted, const DecodeProblem& problem, const DecodeInputs& inputs,
                  const Executor& executor);

}  // namespace flashlatent
