// Query rows of several requests against a prefix that they share: gqa_128 without a mask, unit by
// unit of a plan (plan/prefix.h), its results left as partial ones. gqa_128/launch.cc has it.
#pragma once

#include "kernel/decode_kernel.h"

namespace flashlatent::cuda {

/// Why not, as DecodeKernel::declines_prefixes; what they cost, as prefix_shape.
std::optional<std::string> declines_prefix_units(const DecodeProblem& problem);
prefix::Shape prefix_units_shape(const DecodeProblem& problem, const schedule::Workers& workers);

/// One launch on the executor's stream. It waits on the device for the one before, and lets the next one
/// begin then. `out`: partial rows of d, normalised; `lse`: theirs, natural.
Status launch_prefix_units(const DecodeCall& call, const prefix::Shape& shape, const prefix::View& plan,
                           float* out, float* lse);

}  // namespace flashlatent::cuda
