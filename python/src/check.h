// The option check_inputs of decode calls.
#pragma once

#include <optional>

#include "flashlatent/decode.h"
#include "python/src/array.h"

namespace flashlatent::python {

/// Raises InvalidArgumentError with the first offence among a call's integers, see
/// flashlatent/check_inputs.h. `wanted`: nothing checks arrays on the CPU alone. On CUDA it waits, and is
/// refused while `stream` is captured; `q` is of the package whose allocator is used.
void check_inputs(std::optional<bool> wanted, const DecodeProblem& problem, const DecodeInputs& inputs,
                  nb::handle q, Device device, void* stream);

}  // namespace flashlatent::python
