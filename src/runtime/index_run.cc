#include "runtime/index_run.h"

#include "core/return_if_error.h"
#include "runtime/placed.h"

namespace flashlatent::runtime {

namespace {

/// A tensor over q's query tokens, without memory yet.
TensorView over_tokens(const ConstTensorView& q, Dtype dtype, std::int64_t columns, Device device) {
  if (q.rank == 3) {
    return columns == 0 ? TensorView(nullptr, dtype, {q.shape[0]}, device)
                        : TensorView(nullptr, dtype, {q.shape[0], columns}, device);
  }
  return columns == 0 ? TensorView(nullptr, dtype, {q.shape[0], q.shape[1]}, device)
                      : TensorView(nullptr, dtype, {q.shape[0], q.shape[1], columns}, device);
}

}  // namespace

Result<IndexRun> IndexRun::create(const IndexTopkInputs& inputs, const IndexTopkOptions& options,
                                  const IndexWanted& wanted, const Executor& executor) {
  IndexRun run;
  run.executor_ = executor;
  run.options_ = options;
  for (auto [from, to] : {std::pair{&inputs.q, &run.inputs_.q},
                          {&inputs.q_scale, &run.inputs_.q_scale},
                          {&inputs.weights, &run.inputs_.weights},
                          {&inputs.index_cache, &run.inputs_.index_cache},
                          {&inputs.block_table, &run.inputs_.block_table},
                          {&inputs.cache_seqlens, &run.inputs_.cache_seqlens},
                          {&inputs.cu_seqlens_q, &run.inputs_.cu_seqlens_q},
                          {&inputs.candidates, &run.inputs_.candidates},
                          {&inputs.slot_table, &run.inputs_.slot_table}}) {
    FLASHLATENT_RETURN_IF_ERROR(place(*from, *to, run.buffers_, executor));
  }
  const Device device = device_of(executor);
  const std::int64_t span =
      inputs.candidates.present()
          ? inputs.candidates.shape[inputs.candidates.rank - 1] * options.candidate_block
          : inputs.block_table.shape[1] * options.page_size;
  IndexTopkOutputs& outputs = run.outputs_;
  outputs.indices = over_tokens(inputs.q, Dtype::kI32, wanted.topk, device);
  outputs.counts = over_tokens(inputs.q, Dtype::kI32, 0, device);
  if (wanted.scores) outputs.scores = over_tokens(inputs.q, Dtype::kF32, wanted.topk, device);
  if (wanted.all_scores && span > 0) outputs.all_scores = over_tokens(inputs.q, Dtype::kF32, span, device);
  if (wanted.best_blocks > 0) {
    outputs.best_blocks = over_tokens(inputs.q, Dtype::kI32, wanted.best_blocks, device);
  }
  const OutputMemory::Views views[] = {{&outputs.indices, &run.host_.indices},
                                       {&outputs.counts, &run.host_.counts},
                                       {&outputs.scores, &run.host_.scores},
                                       {&outputs.all_scores, &run.host_.all_scores},
                                       {&outputs.best_blocks, &run.host_.best_blocks}};
  FLASHLATENT_ASSIGN_OR_RETURN(run.results_, OutputMemory::create(views, executor));
  FLASHLATENT_ASSIGN_OR_RETURN(const std::size_t bytes,
                               index_topk_workspace_bytes(run.inputs_, outputs, options, executor));
  FLASHLATENT_ASSIGN_OR_RETURN(run.workspace_, Buffer::allocate(executor, bytes));
  FLASHLATENT_RETURN_IF_ERROR(run.poison());
  return run;
}

Status IndexRun::run() {
  return index_topk(inputs_, outputs_, options_, workspace(), executor_);
}

Status IndexRun::poison(int byte) {
  FLASHLATENT_RETURN_IF_ERROR(results_.poison(byte, executor_));
  return fill(workspace_.data(), byte, workspace_.size(), executor_);
}

Status IndexRun::fetch() {
  return results_.fetch(executor_);
}

}  // namespace flashlatent::runtime
