#include "python/src/plan.h"

#include <cstring>

#include "python/src/errors.h"

namespace flashlatent::python {

InputArrays::InputArrays(const InputHandles& h, std::optional<Dtype> sixteen_bits)
    : q_(Array::read("q", h.q, sixteen_bits)),
      kv_cache_(Array::read("kv_cache", h.kv_cache, sixteen_bits)),
      block_table_(Array::read("block_table", h.block_table)),
      cache_seqlens_(Array::read("cache_seqlens", h.cache_seqlens)) {
  const bool rare =
      !h.indices.is_none() || !h.topk_length.is_none() || !h.cu_seqlens_q.is_none() || !h.attn_sink.is_none();
  if (rare) {
    rare_.emplace(Rare{Array::read("indices", h.indices), Array::read("topk_length", h.topk_length),
                       Array::read("cu_seqlens_q", h.cu_seqlens_q), Array::read("attn_sink", h.attn_sink)});
  }
  if (!h.key_cache.is_none()) {
    separate_.emplace(KeysAndValues{
        Array::read("key_cache", h.key_cache, sixteen_bits),
        Array::read("value_cache", h.value_cache, sixteen_bits), Array::read("key_scale", h.key_scale),
        Array::read("value_scale", h.value_scale), Array::read("alibi_slopes", h.alibi_slopes)});
  }
}

DecodeInputs InputArrays::inputs() const {
  DecodeInputs inputs;
  inputs.q = q_.view();
  inputs.kv_cache = kv_cache_.view();
  inputs.block_table = block_table_.view();
  inputs.cache_seqlens = cache_seqlens_.view();
  if (rare_) {
    inputs.indices = rare_->indices.view();
    inputs.topk_length = rare_->topk_length.view();
    inputs.cu_seqlens_q = rare_->cu_seqlens_q.view();
    inputs.attn_sink = rare_->attn_sink.view();
  }
  if (separate_) {
    inputs.key_cache = separate_->key_cache.view();
    inputs.value_cache = separate_->value_cache.view();
    inputs.key_scale = separate_->key_scale.view();
    inputs.value_scale = separate_->value_scale.view();
    inputs.alibi_slopes = separate_->alibi_slopes.view();
  }
  return inputs;
}

void InputArrays::check_dtype(std::optional<Dtype> dtype) const {
  if (separate_) {
    refuse_unused_dtype(
        dtype, q_.integers() || separate_->key_cache.integers() || separate_->value_cache.integers());
  } else {
    refuse_unused_dtype(dtype, q_.integers() || kv_cache_.integers());
  }
}

Plan::Plan(const DecodeProblem& problem, const Executor& executor)
    : problem_(problem),
      executor_(executor),
      device_(device_of(executor)),
      selection_(take(select(problem, executor))) {}

Executor Plan::executor_on_stream(void* stream) const {
  Executor executor = executor_;
  executor.stream = stream;
  return executor;
}

Status Plan::plan_into(Memory memory, const ConstTensorView& lengths, const HostPages* pages,
                       const Executor& executor) const {
  return pages == nullptr ? plan(selection_, problem_, lengths, memory, executor)
                          : plan(selection_, problem_, lengths, *pages, memory, executor);
}

void Plan::schedule(const ConstTensorView& lengths, nb::handle like, nb::handle storage, void* stream,
                    bool fresh, const HostPages* pages) {
  const Executor executor = executor_on_stream(stream);
  if (!storage.is_none()) {
    const Memory memory = memory_of("plan", Array::output("plan", storage, {}, fresh));
    if (device_.type == DeviceType::kCpu && !is_aligned(memory) && memory.bytes >= selection_.plan_bytes) {
      // A plan must not depend on where it lies: arrays are copied.
      Buffer buffer;
      const Memory aligned = buffer.at_least(selection_.plan_bytes, device_, like);
      check(plan_into(aligned, lengths, pages, executor));
      std::memcpy(memory.data, aligned.data, selection_.plan_bytes);
      return;
    }
    check(plan_into(memory, lengths, pages, executor));
    return;
  }
  check(plan_into(plan_.at_least(selection_.plan_bytes, device_, like), lengths, pages, executor));
  scheduled_ = true;
}

nb::tuple Plan::decode(const DecodeInputs& inputs, nb::handle q, CallerHandles caller, void* stream) {
  if (caller.plan.is_none() && !scheduled_) {
    refuse("the plan of ", to_string(problem_),
           " is not made yet; call schedule() before decode(), once a step");
  }
  const auto& [query, cache, sparse, options] = problem_;
  const bool new_out = caller.out.is_none(), new_lse = caller.lse.is_none();
  if (new_out) {
    caller.out = query.ragged ? empty_like(q, {inputs.q.shape[0], query.heads, cache.v_dim})
                              : empty_like(q, {query.batch, query.tokens, query.heads, cache.v_dim});
  }
  if (new_lse) caller.lse = empty_like(q, {query.batch, query.heads, query.tokens}, "float32");
  const Array out = Array::output("out", caller.out, cache.dtype, new_out);
  const Array lse = Array::output("lse", caller.lse, {}, new_lse);
  const DecodeOutputs outputs{out.view(), lse.view()};
  Memory plan = caller.plan.is_none() ? plan_.memory() : memory_of("plan", Array::read("plan", caller.plan));
  Buffer aligned_plan;
  if (device_.type == DeviceType::kCpu && !is_aligned(plan) && plan.bytes >= selection_.plan_bytes) {
    const Memory aligned = aligned_plan.at_least(selection_.plan_bytes, device_, q);
    std::memcpy(aligned.data, plan.data, selection_.plan_bytes);
    plan = aligned;
  }
  const Memory workspace =
      caller.workspace.is_none()
          ? workspace_.at_least(selection_.workspace_bytes, device_, q)
          : aligned_inside(memory_of(
                "workspace", Array::output("workspace", caller.workspace, {}, caller.fresh_workspace)));
  const Executor executor = executor_on_stream(stream);
  Status status;
  if (device_.type == DeviceType::kCpu) {
    nb::gil_scoped_release release;
    status = flashlatent::decode(selection_, problem_, inputs, outputs, plan, workspace, executor);
  } else {  // it only enqueues: shorter than a wait for the interpreter's lock
    status = flashlatent::decode(selection_, problem_, inputs, outputs, plan, workspace, executor);
  }
  check(status);
  return nb::make_tuple(std::move(caller.out), std::move(caller.lse));
}

}  // namespace flashlatent::python
