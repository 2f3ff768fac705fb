// From a call's tensors to what its kernel is launched with, as far as that is the same for every decode
// kernel.
#pragma once

#include "cuda/parts/arguments.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::cuda {

/// All but where the cache's elements are.
parts::DecodeArguments decode_arguments(const DecodeCall& call);

/// Where the tokens of both lists are, for loaders that take lists.
Status set_listed_caches(const DecodeCall& call, parts::CacheArguments& cache);

/// lse of an empty row for the query tokens that ragged requests do not have.
Status write_missing_rows(const parts::DecodeArguments& args, int heads, const Executor& executor);

}  // namespace flashlatent::cuda
