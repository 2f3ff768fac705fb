// The combine step of a plan.
#pragma once

#include "cuda/parts/arguments.h"
#include "flashlatent/backend.h"
#include "flashlatent/status.h"

namespace flashlatent::cuda {

/// How partial results lie in memory (parts/partial.cuh).
enum class Partials {
  kByTile,  ///< Of bf16 in tiles of 64 rows fp16, else fp32.
  kFp32,
};

/// Merges the plan's split requests into the output. Overlaps the launch of the decode kernel before it.
Status combine_plan(const parts::DecodeArguments& args, Dtype dtype, int v_dim, Partials partials,
                    int multiprocessors, const Executor& executor);

}  // namespace flashlatent::cuda
