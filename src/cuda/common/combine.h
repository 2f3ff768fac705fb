// The combine step of a plan.
#pragma once

#include "cuda/parts/arguments.h"
#include "flashlatent/backend.h"
#include "flashlatent/status.h"

namespace flashlatent::cuda {

/// Merges the plan's split requests into the output. Overlaps the launch of the decode kernel before it.
Status combine_plan(const parts::DecodeArguments& args, Dtype dtype, int v_dim, int multiprocessors,
                    const Executor& executor);

}  // namespace flashlatent::cuda
