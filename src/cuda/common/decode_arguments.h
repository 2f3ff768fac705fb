// From a call's tensors to the arguments that all decode kernels have in common.
#pragma once

#include "cuda/parts/arguments.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::cuda {

/// All arguments but the address of the cache's elements.
parts::DecodeArguments decode_arguments(const DecodeCall& call);

/// Sets the address of both lists' tokens, for loaders that take lists.
Status set_listed_caches(const DecodeCall& call, parts::CacheArguments& cache);

/// Writes the lse of empty rows for query tokens that ragged requests do not have.
Status write_missing_rows(const parts::DecodeArguments& args, const DecodeProblem& problem,
                          const Executor& executor);

}  // namespace flashlatent::cuda
