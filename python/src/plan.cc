#include "python/src/plan.h"

#include <cmath>

#include "python/src/capture.h"
#include "python/src/errors.h"

namespace flashlatent::python {

Plan::Plan(const DecodeProblem& problem, const Executor& executor)
    : problem_(problem),
      executor_(executor),
      device_(device_of(executor)),
      selection_(take(select(problem, executor))) {}

void Plan::schedule(nb::handle lengths, nb::handle like, nb::handle stream, bool once) {
  if (like.is_none()) like = lengths;
  executor_.stream = stream_for(like, device_, stream);
  const unsigned long long capture = capture_id(device_, executor_.stream);
  if (once && (capture == 0 ? scheduled_ : captured_in_ == capture)) return;
  const Array array = Array::read("lengths", lengths);
  plan_memory_ = plan_.at_least(selection_.plan_bytes, device_, like);
  check(plan(selection_, problem_, array.view(), plan_memory_, executor_));
  if (capture == 0) {
    scheduled_ = true;
  } else {
    captured_in_ = capture;
  }
}

nb::tuple Plan::decode(nb::handle q, nb::handle kv_cache, nb::handle block_table, nb::handle cache_seqlens,
                       nb::handle indices, nb::handle topk_length, nb::handle cu_seqlens_q,
                       nb::handle attn_sink, nb::object out, nb::object lse, nb::handle workspace,
                       nb::handle stream) {
  if (!scheduled_ && captured_in_ == 0) {
    refuse("the plan of ", to_string(problem_),
           " is not made yet; call schedule() before decode(), once a step");
  }
  const Dtype dtype = problem_.cache.dtype;
  const std::optional<Dtype> bits = dtype == Dtype::kBF16 ? std::optional(dtype) : std::nullopt;
  const Array q_array = Array::read("q", q, bits);
  const Array cache_array = Array::read("kv_cache", kv_cache, bits);
  const Array table_array = Array::read("block_table", block_table);
  const Array lengths_array = Array::read("cache_seqlens", cache_seqlens);
  const Array indices_array = Array::read("indices", indices);
  const Array topk_array = Array::read("topk_length", topk_length);
  const Array begins_array = Array::read("cu_seqlens_q", cu_seqlens_q);
  const Array sink_array = Array::read("attn_sink", attn_sink);
  const auto& [query, cache, sparse, options] = problem_;
  const bool new_out = out.is_none(), new_lse = lse.is_none();
  if (new_out) {
    out = query.ragged ? empty_like(q, {q_array.view().shape[0], query.heads, cache.v_dim})
                       : empty_like(q, {query.batch, query.tokens, query.heads, cache.v_dim});
  }
  if (new_lse) lse = empty_like(q, {query.batch, query.heads, query.tokens}, "float32");
  const Array out_array = Array::output("out", out, bits, new_out);
  const Array lse_array = Array::output("lse", lse, {}, new_lse);

  DecodeInputs inputs;
  inputs.q = q_array.view();
  inputs.kv_cache = cache_array.view();
  inputs.block_table = table_array.view();
  inputs.cache_seqlens = lengths_array.view();
  inputs.indices = indices_array.view();
  inputs.topk_length = topk_array.view();
  inputs.cu_seqlens_q = begins_array.view();
  inputs.attn_sink = sink_array.view();
  const DecodeOutputs outputs{out_array.view(), lse_array.view()};
  executor_.stream = stream_for(q, device_, stream);
  const Memory memory = workspace.is_none() ? workspace_.at_least(selection_.workspace_bytes, device_, q)
                                            : memory_of("workspace", Array::output("workspace", workspace));
  Status status;
  if (device_.type == DeviceType::kCpu) {
    nb::gil_scoped_release release;
    status = flashlatent::decode(selection_, problem_, inputs, outputs, plan_memory_, memory, executor_);
  } else {  // it only enqueues: shorter than a wait for the interpreter's lock
    status = flashlatent::decode(selection_, problem_, inputs, outputs, plan_memory_, memory, executor_);
  }
  check(status);
  return nb::make_tuple(out, lse);
}

}  // namespace flashlatent::python
