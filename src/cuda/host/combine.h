// The combine step of a plan.
#pragma once

#include "cuda/sm90/walk/arguments.h"
#include "flashlatent/backend.h"
#include "flashlatent/problem.h"
#include "flashlatent/status.h"

namespace flashlatent::cuda {

/// How partial results are stored (merge/partial.cuh).
enum class Partials {
  kByTile,  ///< bf16 calls in tiles of 64 rows: fp16. All others: fp32.
  kFp32,
};

/// Merges the plan's split requests into the output. Its launch overlaps the end of the decode kernel.
Status combine_plan(const sm90::DecodeArguments& args, const DecodeProblem::Cache& cache, Partials partials,
                    const Executor& executor);

/// The same of partial results in fp32 of items in shares, with the output's edge of the layer.
Status combine_edges(const sm90::DecodeArguments& args, const Executor& executor);

}  // namespace flashlatent::cuda
