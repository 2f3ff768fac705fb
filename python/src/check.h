// The option check_inputs of decode calls.
#pragma once

#include <optional>

#include "flashlatent/decode.h"
#include "python/src/array.h"

namespace flashlatent::python {

/// Raises InvalidArgumentError with the first offence among a call's integers, see
/// flashlatent/check_inputs.h. `wanted` nothing: only arrays on the CPU are checked. On CUDA the check waits,
/// and is refused while `stream` is captured; `q` is of the package whose allocator is used. `row` is the
/// caller's word for a request of the problem.
void check_inputs(std::optional<bool> wanted, const DecodeProblem& problem, const DecodeInputs& inputs,
                  nb::handle q, Device device, void* stream, const char* row = "request");

/// What a call wants whose Plan or Step is made with `made_with`: the call can add checks, not take them
/// away.
constexpr std::optional<bool> either(std::optional<bool> call, std::optional<bool> made_with) {
  return call == false ? made_with : call;
}

/// Does FLASHLATENT_CHECK_INPUTS have every call checked? The library does so in decode itself. Raises for a
/// value that is not accepted.
bool checks_every_call();

}  // namespace flashlatent::python
