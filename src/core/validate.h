// Do these tensors fit the problem? Shared by every backend, so that they refuse in the same words.
#pragma once

#include "flashlatent/decode.h"

namespace flashlatent {

/// Shapes, dtypes, device and innermost strides of a decode call's inputs. `device` is where all tensors must
/// be.
Status validate_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, Device device);

/// The same of all its tensors; on the CPU also the values of cu_seqlens_q.
Status validate_decode(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
                       Device device);

/// What plan() gets.
Status validate_lengths(const DecodeProblem& problem, const PlanLengths& lengths, Device device);

/// What plan() gets of pages, on the CPU.
Status validate_host_pages(const DecodeProblem& problem, const HostPages& pages);

/// `memory` holds at least `bytes` and is aligned to `alignment` bytes.
Status validate_memory(const char* name, Memory memory, std::size_t bytes, std::size_t alignment = 256);

}  // namespace flashlatent
