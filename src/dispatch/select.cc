#include "dispatch/select.h"

#include <algorithm>

#include "choose/near_kernel.h"
#include "core/message.h"
#include "cost/model.h"
#include "cpu/cpu_backend.h"
#include "cpu/parallel.h"
#include "plan/schedule.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace flashlatent {

Result<schedule::Workers> workers_of(const Executor& executor) {
  if (executor.backend == Backend::kCpu) {
    return schedule::Workers(executor.threads > 0 ? executor.threads : cpu::hardware_threads());
  }
#if FLASHLATENT_WITH_CUDA
  return cuda::workers(executor.device);
#else
  return available(executor.backend);
#endif
}

Device device_of(const Executor& executor) {
  if (executor.backend == Backend::kCpu) return {};
  return {DeviceType::kCuda, executor.device};
}

Status validate(const Executor& executor) {
  if (executor.threads < 0 || executor.threads > cpu::kMostThreads) {
    return invalid_argument("threads is ", executor.threads, "; 0, which means all, to ", cpu::kMostThreads,
                            " are accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(available(executor.backend));
  return validate_kernel_name(executor);
}

namespace {

/// All candidates of an executor that can run here, and the workers that they were asked for.
struct Considered {
  schedule::Workers workers;
  std::vector<Candidate> list;
};
Result<Considered> consider(const DecodeProblem& problem, const Executor& executor, Purpose purpose) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_ASSIGN_OR_RETURN(const schedule::Workers workers, workers_of(executor));
  FLASHLATENT_ASSIGN_OR_RETURN(std::vector<Candidate> list, candidates(problem, executor, workers, purpose));
  return Considered{workers, std::move(list)};
}

/// The near kernel beside `far`, if there is one. `sizes`: those that hold for every kernel.
Result<NearKernel> near_kernel(const DecodeProblem& problem, const Executor& executor,
                               const schedule::Workers& workers, const Candidate& far, const Sizes& sizes) {
  NearKernel near{.memory = schedule::TwoPlans(sizes.plan)};
  FLASHLATENT_ASSIGN_OR_RETURN(const auto found, near_candidate(problem, executor, workers, far));
  if (!found) return near;
  const Candidate& candidate = found->candidate;
  const Sizes needed = sizes_of(problem, {candidate}, candidate);
  if (needed.plan > sizes.plan || needed.workspace > sizes.workspace) return near;
  near.kernel = candidate.kernel;
  near.geometry = candidate.geometry;
  near.packs = packs(problem, candidate, workers);
  near.most_tokens = found->most_tokens;
  return near;
}

}  // namespace

Result<Selection> select(const DecodeProblem& problem, const Executor& executor, Purpose purpose) {
  FLASHLATENT_ASSIGN_OR_RETURN(const auto considered, consider(problem, executor, purpose));
  const auto& [workers, list] = considered;
  const Candidate* best = cheapest(list);
  if (best == nullptr) return none_takes(problem, list);
  Selection selection{.kernel = best->kernel,
                      .geometry = best->geometry,
                      .estimate = best->times.equal,
                      .prefix = best->prefix};
  if (is_in_turn(purpose)) return selection;
  selection.packs = packs(problem, *best, workers);
  Sizes sizes = sizes_of(problem, list, *best);
  if (lengths_may_decide(problem, executor)) {
    FLASHLATENT_ASSIGN_OR_RETURN(selection.near, near_kernel(problem, executor, workers, *best, sizes));
    sizes.plan = selection.near.memory.bytes();
  }
  selection.held_bytes = schedule::held_bytes(schedule::held_shape(problem));
  const auto with_held = [&](std::size_t bytes) {
    return selection.held_bytes == 0 ? bytes : (bytes + 15) / 16 * 16 + selection.held_bytes;
  };
  selection.plan_bytes = with_held(sizes.plan);
  selection.workspace_bytes = with_held(sizes.workspace);
  return selection;
}

Result<const DecodeKernel*> kernel_of_call(const DecodeKernel& picked, const DecodeProblem& problem,
                                           const DecodeInputs& inputs, const DecodeOutputs& outputs,
                                           std::string_view asked_for) {
  if (picked.substitute == nullptr) return &picked;
  const DecodeKernel* other = picked.substitute(problem, inputs, outputs, nullptr);
  if (other == nullptr) return &picked;
  if (asked_for.empty()) return other;
  std::string reason;
  picked.substitute(problem, inputs, outputs, &reason);
  return unsupported("kernel is '", asked_for, "', but ", reason, "; without a kernel by name ", other->name,
                     " runs");
}

Result<std::string> picked_kernel(const DecodeProblem& problem, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Selection selection, select(problem, executor));
  return std::string(selection.kernel->name);
}

Result<std::vector<std::string>> kernels_in_question(const DecodeProblem& problem, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const auto considered, consider(problem, executor, Purpose::kDecode));
  const std::vector<Candidate>& list = considered.list;
  const Candidate* best = cheapest(list);
  if (best == nullptr) return none_takes(problem, list);
  std::vector<std::string> names;
  for (const Candidate& candidate : list) {
    const bool by_name = candidate.geometry.cost.per_call >= cost::kNever.per_call;
    if (candidate.reason.empty() && (!by_name || &candidate == best)) {
      names.emplace_back(candidate.kernel->name);
    }
  }
  return names;
}

Result<std::vector<std::string>> kernels_that_take(const DecodeProblem& problem, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const auto considered, consider(problem, executor, Purpose::kDecode));
  std::vector<std::string> names;
  for (const Candidate& candidate : considered.list) {
    if (candidate.reason.empty()) names.emplace_back(candidate.kernel->name);
  }
  return names;
}

Result<std::string> explain_for(Purpose purpose, const DecodeProblem& problem, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const auto considered, consider(problem, executor, purpose));
  const auto& [workers, list] = considered;
  std::string text = explain(list);
  if (purpose == Purpose::kDecode) {
    FLASHLATENT_ASSIGN_OR_RETURN(const std::string near, explain_near(problem, executor, workers, list));
    text += near;
  }
  return text;
}

Result<std::string> explain(const DecodeProblem& problem, const Executor& executor) {
  return explain_for(Purpose::kDecode, problem, executor);
}

}  // namespace flashlatent
