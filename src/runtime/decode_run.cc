#include "runtime/decode_run.h"

#include <algorithm>
#include <utility>

#include "core/decode_inputs.h"
#include "core/message.h"
#include "runtime/placed.h"

namespace flashlatent::runtime {

Result<DecodeRun> DecodeRun::create(const DecodeProblem& problem, const DecodeInputs& inputs,
                                    const Executor& executor, const Fp8Request& fp8) {
  DecodeRun run;
  FLASHLATENT_ASSIGN_OR_RETURN(Plan handle, Plan::make(problem, executor));
  run.handle_ = handle;
  run.executor_ = executor;
  for (const auto& [name, view] : kDecodeInputs) {
    FLASHLATENT_RETURN_IF_ERROR(place(inputs.*view, run.inputs_.*view, run.buffers_, executor));
  }
  FLASHLATENT_RETURN_IF_ERROR(place_edges(inputs, run.inputs_, run.buffers_, executor));
  if (problem.options.prefix_sharing != PrefixSharing::kOff && !problem.sparse.enabled) {
    run.keep_pages(inputs);
  }
  const auto& [query, cache, sparse, options] = problem;
  const Device device = device_of(executor);
  TensorView out =
      query.ragged
          ? TensorView(nullptr, cache.dtype, {inputs.q.shape[0], query.heads, cache.v_dim}, device)
          : TensorView(nullptr, cache.dtype, {query.batch, query.tokens, query.heads, cache.v_dim}, device);
  TensorView lse(nullptr, Dtype::kF32, {query.batch, query.heads, query.tokens}, device);
  run.host_out_.resize(out.elements() * size_of(out.dtype));
  run.host_lse_.resize(lse.elements() * sizeof(float));
  for (auto [buffer, bytes] : {std::pair{&run.out_, run.host_out_.size()},
                               {&run.lse_, run.host_lse_.size()},
                               {&run.plan_, handle.plan_bytes()},
                               {&run.workspace_, handle.workspace_bytes()}}) {
    FLASHLATENT_ASSIGN_OR_RETURN(*buffer, Buffer::allocate(executor, bytes));
  }
  out.data = run.out_.data();
  lse.data = run.lse_.data();
  run.outputs_ = {out, lse};
  FLASHLATENT_ASSIGN_OR_RETURN(run.fp8_, Fp8Memory::create(fp8, out, executor));
  run.outputs_.out_fp8 = run.fp8_.there();
  if (!fp8.keeps_out) run.outputs_.out = {};
  FLASHLATENT_RETURN_IF_ERROR(run.poison());
  return run;
}

void DecodeRun::keep_pages(const DecodeInputs& inputs) {
  const ConstTensorView& table = inputs.block_table;
  for (std::int64_t request = 0; request < table.shape[0]; ++request) {
    const auto* row = static_cast<const std::int32_t*>(table.data) + request * table.strides[0];
    host_table_.insert(host_table_.end(), row, row + table.shape[1]);
    host_lengths_.push_back(static_cast<const std::int32_t*>(inputs.cache_seqlens.data)[request]);
  }
}

Status DecodeRun::set_lengths(const PlanLengths& lengths) {
  const PlanLengths now = lengths_of(problem(), inputs_);
  for (const auto& [from, to] : {std::pair{&lengths.cache, &now.cache}, {&lengths.extra, &now.extra}}) {
    if (!from->present() || !to->present()) continue;
    // const_cast: the memory is a buffer of this run
    FLASHLATENT_RETURN_IF_ERROR(copy_to_device(const_cast<void*>(to->data), from->data,
                                               from->elements() * sizeof(std::int32_t), executor_));
  }
  if (!host_lengths_.empty() && lengths.cache.present()) {
    std::copy_n(static_cast<const std::int32_t*>(lengths.cache.data), host_lengths_.size(),
                host_lengths_.begin());
  }
  return {};
}

Status DecodeRun::poison() {
  for (const Buffer* buffer : {&out_, &lse_, &workspace_}) {
    FLASHLATENT_RETURN_IF_ERROR(fill(buffer->data(), 0xFF, buffer->size(), executor_));
  }
  return fp8_.poison(0xFF, executor_);
}

Status DecodeRun::check_inputs() const {
  FLASHLATENT_ASSIGN_OR_RETURN(Buffer found, Buffer::allocate(executor_, kInputOffenceBytes));
  InputOffence offence;
  FLASHLATENT_RETURN_IF_ERROR(flashlatent::check_inputs(problem(), inputs_, found.memory(), executor_));
  FLASHLATENT_RETURN_IF_ERROR(copy_to_host(&offence, found.data(), sizeof(offence), executor_));
  return to_status(offence);
}

Status DecodeRun::plan() {
  const auto& [query, cache, sparse, options] = problem();
  const PlanLengths lengths = lengths_of(problem(), inputs_);
  if (host_table_.empty()) return handle_->schedule(lengths, plan_.memory());
  const HostPages pages{{host_table_.data(), Dtype::kI32, {query.batch, cache.max_pages}},
                        {host_lengths_.data(), Dtype::kI32, {query.batch}}};
  return handle_->schedule(lengths, pages, plan_.memory());
}

Status DecodeRun::decode() {
  return handle_->decode(inputs_, outputs_, plan_.memory(), workspace_.memory());
}

Status DecodeRun::run(int times) {
  for (int i = 0; i < times; ++i) {
    FLASHLATENT_RETURN_IF_ERROR(plan());
    FLASHLATENT_RETURN_IF_ERROR(decode());
  }
  return {};
}

Status DecodeRun::fetch() {
  FLASHLATENT_RETURN_IF_ERROR(synchronize(executor_));
  FLASHLATENT_RETURN_IF_ERROR(copy_to_host(host_out_.data(), out_.data(), host_out_.size(), executor_));
  FLASHLATENT_RETURN_IF_ERROR(copy_to_host(host_lse_.data(), lse_.data(), host_lse_.size(), executor_));
  host_out_view_ = outputs_.out;
  host_out_view_.data = host_out_.data();
  host_out_view_.device = {};
  host_lse_view_ = outputs_.lse;
  host_lse_view_.data = host_lse_.data();
  host_lse_view_.device = {};
  return fp8_.fetch(executor_);
}

}  // namespace flashlatent::runtime
