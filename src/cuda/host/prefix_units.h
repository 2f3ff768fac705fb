// Query rows of several requests against a prefix that they share: gqa_128's kernel without a mask computes
// the units of a plan (plan/prefix.h) and leaves partial results. Implemented in gqa_128/launch.cc.
#pragma once

#include "kernel/decode_kernel.h"

namespace flashlatent::cuda {

/// DecodeKernel::declines_prefixes of kernels that use these units.
std::optional<std::string> declines_prefix_units(const DecodeProblem& problem);

/// One launch on the executor's stream. It waits on the device for the previous launch, and lets the next one
/// begin then. `out`: partial rows of d elements, normalised. `lse`: natural.
Status launch_prefix_units(const DecodeCall& call, const prefix::Shape& shape, const prefix::View& plan,
                           float* out, float* lse);

}  // namespace flashlatent::cuda
