#include "runtime/prefill_run.h"

#include <algorithm>

#include "core/return_if_error.h"
#include "dispatch/sparse_prefill.h"
#include "runtime/placed.h"

namespace flashlatent::runtime {

Result<PrefillRun> PrefillRun::create(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                                      const Executor& executor, const Fp8Request& fp8) {
  PrefillRun run;
  run.executor_ = executor;
  run.options_ = options;
  for (auto [from, to] : {std::pair{&inputs.q, &run.inputs_.q},
                          {&inputs.q_rope, &run.inputs_.q_rope},
                          {&inputs.kv, &run.inputs_.kv},
                          {&inputs.kv_scale, &run.inputs_.kv_scale},
                          {&inputs.q_scale, &run.inputs_.q_scale},
                          {&inputs.indices, &run.inputs_.indices},
                          {&inputs.topk_length, &run.inputs_.topk_length},
                          {&inputs.attn_sink, &run.inputs_.attn_sink},
                          {&inputs.extra_kv_cache, &run.inputs_.extra_kv_cache},
                          {&inputs.extra_indices, &run.inputs_.extra_indices},
                          {&inputs.extra_topk_length, &run.inputs_.extra_topk_length}}) {
    FLASHLATENT_RETURN_IF_ERROR(place(*from, *to, run.buffers_, executor));
  }
  FLASHLATENT_RETURN_IF_ERROR(place_edges(inputs, run.inputs_, run.buffers_, executor));
  FLASHLATENT_ASSIGN_OR_RETURN(const std::size_t bytes,
                               sparse_prefill_workspace_bytes(run.inputs_, options, executor));
  FLASHLATENT_ASSIGN_OR_RETURN(run.workspace_, Buffer::allocate(executor, bytes));
  const std::int64_t s_q = inputs.q.shape[0], h_q = inputs.q.shape[1];
  const Device device = device_of(executor);
  const Dtype out_dtype = inputs.q.dtype == Dtype::kU8 ? Dtype::kBF16 : inputs.q.dtype;
  run.outputs_ = {{nullptr, out_dtype, {s_q, h_q, options.v_dim}, device},
                  {nullptr, Dtype::kF32, {s_q, h_q}, device},
                  {nullptr, Dtype::kF32, {s_q, h_q}, device}};
  const OutputMemory::Views views[] = {{&run.outputs_.out, &run.host_.out},
                                       {&run.outputs_.max_logits, &run.host_.max_logits},
                                       {&run.outputs_.lse, &run.host_.lse}};
  FLASHLATENT_ASSIGN_OR_RETURN(run.results_, OutputMemory::create(views, executor));
  FLASHLATENT_ASSIGN_OR_RETURN(run.fp8_, Fp8Memory::create(fp8, run.outputs_.out, executor));
  run.outputs_.out_fp8 = run.fp8_.there();
  if (!fp8.keeps_out) run.outputs_.out = run.host_.out = {};
  if (!options.max_logits) run.outputs_.max_logits = run.host_.max_logits = {};
  FLASHLATENT_RETURN_IF_ERROR(run.poison());
  return run;
}

Status PrefillRun::run() {
  return sparse_prefill(inputs_, outputs_, options_, workspace(), executor_);
}

Status PrefillRun::poison(int byte) {
  FLASHLATENT_RETURN_IF_ERROR(results_.poison(byte, executor_));
  FLASHLATENT_RETURN_IF_ERROR(fill(workspace_.data(), byte, workspace_.size(), executor_));
  return fp8_.poison(byte, executor_);
}

Status PrefillRun::fetch() {
  FLASHLATENT_RETURN_IF_ERROR(results_.fetch(executor_));
  FLASHLATENT_RETURN_IF_ERROR(fp8_.fetch(executor_));
  host_.out_fp8 = fp8_.here();
  return {};
}

SparsePrefillOptions prefill_options(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  SparsePrefillOptions options{.softmax_scale = problem.options.softmax_scale, .v_dim = cache.v_dim};
  options.products = problem.options.products;
  if (cache.format != KvFormat::kPlain) options.format = {.format = cache.format, .scales = cache.scales};
  options.extra_format = cache.extra.format;
  options.out_edge = problem.options.out_edge;
  return options;
}

Rotation without_query_token(Rotation rotation) {
  ConstTensorView& positions = rotation.positions;
  if (!positions.present()) return rotation;
  positions.shape = {positions.shape[0]};
  positions.strides = {positions.strides[0]};
  positions.rank = 1;
  return rotation;
}

SparsePrefillInputs prefill_inputs(const DecodeInputs& decode) {
  SparsePrefillInputs inputs;
  auto of_rows = [](ConstTensorView view) {
    view.shape = {view.shape[0], view.shape[2], view.shape[3]};
    view.strides = {view.strides[0], view.strides[2], 1};
    view.rank = 3;
    return view;
  };
  inputs.q = of_rows(decode.q);
  if (decode.q_rope.present()) inputs.q_rope = of_rows(decode.q_rope);
  inputs.kv = decode.kv_cache;
  if (decode.kv_cache.dtype != Dtype::kU8 && decode.kv_cache.shape[1] == 1) {
    inputs.kv.shape = {decode.kv_cache.shape[0], 1, decode.kv_cache.shape[3]};
    inputs.kv.strides = {decode.kv_cache.strides[0], decode.kv_cache.strides[2], 1};
    inputs.kv.rank = 3;
  }
  inputs.kv_scale = decode.kv_scale;
  inputs.q_scale = decode.q_scale;
  inputs.indices = decode.indices;
  inputs.topk_length = decode.topk_length;
  inputs.attn_sink = decode.attn_sink;
  inputs.extra_kv_cache = decode.extra_kv_cache;
  inputs.extra_indices = decode.extra_indices;
  inputs.extra_topk_length = decode.extra_topk_length;
  inputs.q_norm = decode.q_norm;
  inputs.q_rotate = without_query_token(decode.q_rotate);
  inputs.out_rotate = without_query_token(decode.out_rotate);
  return inputs;
}

Result<Comparison> compare_prefill(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                                   const SparsePrefillOutputs& results, RowSample sample,
                                   OracleMemory* memory) {
  FLASHLATENT_ASSIGN_OR_RETURN(const SparsePrefillCall call, as_decode(inputs, options, Device{}));
  return compare(call.problem, call.inputs, out_as_decode(results), with_last_query_token(results.lse), {},
                 {}, sample, {max_logits_as_decode(results), {}}, results.out_fp8, memory);
}

}  // namespace flashlatent::runtime
