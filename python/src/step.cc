#include "python/src/step.h"

#include <algorithm>

#include "python/src/bindings.h"
#include "python/src/check.h"
#include "python/src/cuda_stream.h"
#include "python/src/errors.h"

namespace flashlatent::python {

namespace {

// Enough for the layers of any model; a step that is kept for ever over batches of all sizes stays bounded.
constexpr std::size_t kMostPlans = 64;

}  // namespace

std::shared_ptr<Plan> Step::find(const DecodeProblem& problem, Device device) {
  const auto found = std::find_if(plans_.rbegin(), plans_.rend(), [&](const std::shared_ptr<Plan>& plan) {
    return plan->device() == device && plan->problem() == problem;
  });
  if (found == plans_.rend()) {
    plans_.push_back(std::make_shared<Plan>(problem, executor_on(device, threads_, kernel_), check_inputs_));
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

void Step::schedule(DecodeProblem problem, const PlanLengths& lengths, nb::handle like, Device device,
                    void* stream) {
  if (stateless_)
    refuse("the Step is stateless, and keeps no plans; schedule a Plan and give decode() its plan=");
  enter(capture_id(device, stream));
  problem.options.calls_per_plan = calls_per_plan_;
  find(problem, device)->schedule(lengths, like, nb::none(), stream);
}

nb::tuple Step::decode(DecodeArguments given) {
  const std::optional<Dtype> sixteen_bits = sixteen_bits_of(given);
  const InputArrays arrays(given, sixteen_bits);
  arrays.check_dtype(sixteen_bits);
  const DecodeInputs inputs = arrays.inputs();
  if (given.is_fp8 && *given.is_fp8 != (inputs.kv_cache.dtype == Dtype::kU8)) {
    refuse("is_fp8_kvcache is ", *given.is_fp8 ? "True" : "False", " and k_cache is ",
           nb::cast<std::string>(nb::str(nb::object(given.kv_cache.attr("dtype")))),
           "; an fp8 cache has elements of one byte, any other q's dtype");
  }
  const nb::handle q = given.q;
  const WorkStream work(q, inputs.q.device, given.stream);
  if (!stateless_) enter(capture_id(inputs.q.device, work.handle()));
  DecodeProblem problem = problem_of(inputs, given);
  problem.options.calls_per_plan = calls_per_plan_;
  if (stateless_ && given.plan.is_none()) problem.options.calls_per_plan = 1;  // this one
  const std::shared_ptr<Plan> plan = find(problem, inputs.q.device);
  check_inputs(either(given.check_inputs, check_inputs_), plan->problem(), inputs, q, plan->device(),
               work.handle());
  const PlanLengths lengths = lengths_of(plan->problem(), inputs);
  nb::object own_plan, own_workspace;  // of this call alone
  auto own = [&](std::size_t bytes) { return empty_like(q, {static_cast<std::int64_t>(bytes)}, "uint8"); };
  const bool fresh_workspace = stateless_ && given.workspace.is_none();
  if (fresh_workspace) {
    given.workspace = own_workspace = own(with_alignment(plan->handle().workspace_bytes()));
  }
  if (stateless_ && given.plan.is_none()) {
    given.plan = own_plan = own(plan->handle().plan_bytes());
    plan->schedule(lengths, q, given.plan, work.handle(), true);
  }
  // A plan stays right when lengths change, but not with batch_invariant.
  if (given.plan.is_none() && (!plan->scheduled() || given.batch_invariant)) {
    plan->schedule(lengths, q, nb::none(), work.handle());
  }
  nb::tuple result = plan->decode(inputs, arrays.out_fp8(), std::move(given), work.handle(), fresh_workspace);
  work.finish();
  return result;
}

}  // namespace flashlatent::python
