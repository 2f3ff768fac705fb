// From a call's tensors to the arguments that all decode kernels have in common.
#pragma once

#include "cuda/sm90/walk/arguments.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::cuda {

/// All arguments but the address of the cache's elements.
sm90::DecodeArguments decode_arguments(const DecodeCall& call);

/// Sets the address of both lists' tokens, for loaders that take lists.
Status set_listed_caches(const DecodeCall& call, sm90::CacheArguments& cache);

/// Writes the lse of empty rows for query tokens that ragged requests do not have.
Status write_missing_rows(const sm90::DecodeArguments& args, const DecodeProblem& problem,
                          const Executor& executor);

}  // namespace flashlatent::cuda
