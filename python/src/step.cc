#include "python/src/step.h"

#include <algorithm>

#include "python/src/bindings.h"
#include "python/src/errors.h"

namespace flashlatent::python {

namespace {

// Enough for the layers of any model; a step that is kept for ever over batches of all sizes stays bounded.
constexpr std::size_t kMostPlans = 64;

}  // namespace

DecodeProblem infer_problem(const DecodeInputs& inputs, const StepOptions& options) {
  DecodeProblem problem = take(flashlatent::infer_problem(inputs, options.v_dim, options.options));
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

nb::tuple Step::decode(const InputHandles& handles, const StepOptions& options, const CallerHandles& caller,
                       nb::handle stream) {
  const InputArrays arrays(handles, options.sixteen_bits);
  const DecodeInputs inputs = arrays.inputs();
  const std::shared_ptr<Plan> plan = find(infer_problem(inputs, options), inputs.q.device);
  void* handle = stream_for(handles.q, inputs.q.device, stream);
  if (caller.plan.is_none() && !plan->scheduled(handle)) {
    const bool sparse = plan->problem().sparse.enabled;
    plan->schedule(sparse ? inputs.topk_length : inputs.cache_seqlens, handles.q, nb::none(), handle);
  }
  return plan->decode(inputs, handles.q, caller, handle);
}

}  // namespace flashlatent::python
