// What the CUDA backend offers to dispatch for index keys, beside cuda_backend.h.
#pragma once

#include "core/index_call.h"
#include "flashlatent/backend.h"

namespace flashlatent::cuda {

/// index_topk() and its relatives on device memory: launches only. Arguments are already validated.
Result<std::size_t> index_topk_workspace_bytes(const IndexCall& call, const Executor& executor);
Status index_topk(const IndexCall& call, Memory workspace, const Executor& executor);
Status merge_topk(const MergeCall& call, const Executor& executor);
decltype(flashlatent::append_index_keys) append_index_keys;
decltype(flashlatent::gather_index_keys) gather_index_keys;
decltype(flashlatent::quantize_index_queries) quantize_index_queries;

}  // namespace flashlatent::cuda
