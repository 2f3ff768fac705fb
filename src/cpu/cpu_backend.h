// What the CPU backend offers to dispatch.
#pragma once

#include "core/index_call.h"
#include "core/step_tokens.h"
#include "flashlatent/combine.h"
#include "flashlatent/edges.h"
#include "flashlatent/kv_cache.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::cpu {

/// The fast kernel: SIMD by Highway, threads by OpenMP.
extern const DecodeKernel kDenseKernel;
/// The float64 oracle as a kernel, to run only when asked for by name.
extern const DecodeKernel kReferenceKernel;

/// combine() and the operations of flashlatent/kv_cache.h on host memory. Their arguments are already
/// validated, except for the values of slots, pages and sequence lengths.
decltype(flashlatent::append_latent) append_latent;
decltype(flashlatent::convert_cache) convert_cache;
decltype(flashlatent::gather_cache) gather_cache;
decltype(flashlatent::copy_pages) copy_pages;
decltype(flashlatent::append_kv) append_kv;
decltype(flashlatent::gather_kv) gather_kv;
decltype(flashlatent::convert_kv) convert_kv;
decltype(flashlatent::combine) combine;
decltype(flashlatent::prepare_queries) prepare_queries;
decltype(flashlatent::finish_outputs) finish_outputs;

/// prepare_step(), validated.
Status prepare_step(const step_tokens::Call& call, const Executor& executor);

/// index_topk() and its relatives on host memory, validated likewise. Kernel "reference": the float64 oracle.
Result<std::size_t> index_topk_workspace_bytes(const IndexCall& call, const Executor& executor);
Status index_topk(const IndexCall& call, Memory workspace, const Executor& executor);
Status merge_topk(const MergeCall& call, const Executor& executor);
decltype(flashlatent::append_index_keys) append_index_keys;
decltype(flashlatent::gather_index_keys) gather_index_keys;
decltype(flashlatent::quantize_index_queries) quantize_index_queries;

/// The SIMD target that run-time dispatch picked, such as "AVX3".
const char* simd_target();

}  // namespace flashlatent::cpu
