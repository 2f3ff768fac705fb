// Do these tensors fit the problem? Every backend calls these, so all refuse in the same words. Errors:
// kInvalidArgument, kExhausted.
#pragma once

#include "flashlatent/decode.h"

namespace flashlatent {

/// Checks shapes, dtypes, device and innermost strides of a decode call's inputs. `device`: where all tensors
/// must be.
Status validate_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, Device device);

/// Checks all tensors of a decode call, and on the CPU the values of cu_seqlens_q.
Status validate_decode(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
                       Device device);

/// Checks the lengths that plan() gets.
Status validate_lengths(const DecodeProblem& problem, const PlanLengths& lengths, Device device);

/// Checks the pages that plan() gets, which are on the CPU.
Status validate_host_pages(const DecodeProblem& problem, const HostPages& pages);

/// Does `memory` have at least `bytes` bytes at an address that is a multiple of `alignment`? kExhausted if
/// it is too small.
Status validate_memory(const char* name, Memory memory, std::size_t bytes, std::size_t alignment = 256);

}  // namespace flashlatent
