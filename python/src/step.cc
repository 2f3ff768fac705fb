#include "python/src/step.h"

#include <algorithm>
#include <cmath>

#include "python/src/bindings.h"
#include "python/src/check.h"
#include "python/src/cuda_stream.h"
#include "python/src/errors.h"

namespace flashlatent::python {

namespace {

// Enough for the layers of any model; a step that is kept for ever over batches of all sizes stays bounded.
constexpr std::size_t kMostPlans = 64;

}  // namespace

DecodeProblem infer_problem(const DecodeInputs& inputs, const StepOptions& options) {
  DecodeProblem problem = take(flashlatent::infer_problem(inputs, options.v_dim, options.options));
  if (options.default_scale) {
    problem.options.softmax_scale = 1 / std::sqrt(static_cast<float>(problem.cache.qk_dim));
  }
  if (options.tokens && !problem.query.ragged && *options.tokens != problem.query.tokens) {
    refuse("tokens is ", *options.tokens, " and cu_seqlens_q is not given; q has ", problem.query.tokens,
           " query tokens a request, leave tokens out");
  }
  if (options.tokens) {
    problem.query.tokens = *options.tokens;
    check(validate(problem));
  }
  return problem;
}

std::shared_ptr<Plan> Step::find(const DecodeProblem& problem, Device device) {
  const auto found = std::find_if(plans_.rbegin(), plans_.rend(), [&](const std::shared_ptr<Plan>& plan) {
    return plan->device() == device && plan->problem() == problem;
  });
  if (found == plans_.rend()) {
    plans_.push_back(std::make_shared<Plan>(problem, executor_on(device, threads_, kernel_)));
    if (plans_.size() > kMostPlans) plans_.erase(plans_.begin());
  } else if (found != plans_.rbegin()) {
    std::rotate(found.base() - 1, found.base(), plans_.end());
  }
  return plans_.back();
}

void Step::enter(unsigned long long capture) {
  if (capture == capture_) return;
  plans_.clear();
  capture_ = capture;
}

nb::tuple Step::decode(const InputHandles& handles, const StepOptions& options, CallerHandles caller,
                       nb::handle stream) {
  const InputArrays arrays(handles, options.sixteen_bits);
  arrays.check_dtype(options.sixteen_bits);
  const DecodeInputs inputs = arrays.inputs();
  if (options.is_fp8 && *options.is_fp8 != (inputs.kv_cache.dtype == Dtype::kU8)) {
    refuse("is_fp8_kvcache is ", *options.is_fp8 ? "True" : "False", " and k_cache is ",
           nb::cast<std::string>(nb::str(nb::object(handles.kv_cache.attr("dtype")))),
           "; an fp8 cache has elements of one byte, any other q's dtype");
  }
  const WorkStream work(handles.q, inputs.q.device, stream);
  if (!stateless_) enter(capture_id(inputs.q.device, work.handle()));
  const std::shared_ptr<Plan> plan = find(infer_problem(inputs, options), inputs.q.device);
  check_inputs(options.check_inputs, plan->problem(), inputs, handles.q, plan->device(), work.handle());
  const ConstTensorView& lengths = plan->problem().sparse.enabled ? inputs.topk_length : inputs.cache_seqlens;
  nb::object own_plan, own_workspace;  // of this call alone
  auto own = [&](std::size_t bytes) {
    return empty_like(handles.q, {static_cast<std::int64_t>(bytes)}, "uint8");
  };
  if (stateless_ && caller.workspace.is_none()) {
    caller.workspace = own_workspace = own(with_alignment(plan->selection().workspace_bytes));
    caller.fresh_workspace = true;
  }
  if (stateless_ && caller.plan.is_none()) {
    caller.plan = own_plan = own(plan->selection().plan_bytes);
    plan->schedule(lengths, handles.q, caller.plan, work.handle(), true);
  }
  // A plan stays right when lengths change, but not with batch_invariant.
  if (caller.plan.is_none() && (!plan->scheduled() || options.options.batch_invariant)) {
    plan->schedule(lengths, handles.q, nb::none(), work.handle());
  }
  nb::tuple result = plan->decode(inputs, handles.q, caller, work.handle());
  work.finish();
  return result;
}

}  // namespace flashlatent::python
