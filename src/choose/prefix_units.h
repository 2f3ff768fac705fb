// The shape of shared prefixes whose units gqa_128's kernel computes (cuda/host/prefix_units.h).
#pragma once

#include "kernel/decode_kernel.h"

namespace flashlatent::choose {

/// For Cutter::prefix_shape of kernels that use these units.
prefix::Shape prefix_units_shape(const DecodeProblem& problem, const schedule::Workers& workers);

}  // namespace flashlatent::choose
