// The choice that callers keep, and the calls by it.
#include "flashlatent/plan.h"

#include <cstddef>
#include <vector>

#include "core/message.h"
#include "core/validate.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"
#include "plan/describe.h"
#include "plan/host_plan.h"
#include "plan/prefix_plan.h"

namespace flashlatent {

struct Plan::Choice {
  DecodeProblem problem;
  Executor executor;
  Device device;
  Selection selection;
};

namespace {

/// What a launch needs of an executor: its kernel is chosen, and to copy the name may take memory.
Executor on_stream(const Executor& executor, void* stream) {
  return {.backend = executor.backend,
          .device = executor.device,
          .stream = stream,
          .threads = executor.threads,
          .kernel = {}};
}

void build_on_host(const Selection& selection, const PlanLengths& lengths,
                   std::span<const prefix::Group> groups, void* plan) {
  if (selection.geometry.lists == 2) {
    schedule::build_on_host(selection.geometry, schedule::union_lengths(lengths), plan);
  } else {
    prefix::build_on_host(selection.geometry, selection.prefix, groups,
                          static_cast<const std::int32_t*>(lengths.cache.data), plan);
  }
}

/// A plan for these groups; `lengths` are valid. `host_lengths`: where there are groups, the same on the
/// host.
Status build_plan(const Selection& selection, const PlanLengths& lengths,
                  std::span<const prefix::Group> groups, [[maybe_unused]] const std::int32_t* host_lengths,
                  Memory plan, [[maybe_unused]] const Executor& executor) {
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    if (selection.geometry.lists == 2) {
      return cuda::build_plan(selection.geometry, schedule::union_lengths(lengths), plan, executor);
    }
    if (selection.prefix.requests == 0) {
      return cuda::build_plan(selection.geometry, lengths.cache, plan, executor);
    }
    return cuda::build_plan(selection.geometry, selection.prefix, groups, host_lengths, lengths.cache, plan,
                            executor);
  }
#endif
  build_on_host(selection, lengths, groups, plan.data);
  return {};
}

/// A plan on the host, as data; `lengths` are valid.
Result<PlanDescription> described(const Selection& selection, const PlanLengths& lengths, Memory plan) {
  const char* kernel = selection.kernel->name;
  if (selection.geometry.lists == 2) {
    return describe_plan(selection.geometry, schedule::union_lengths(lengths), plan, kernel);
  }
  return describe_plan(selection.geometry, static_cast<const std::int32_t*>(lengths.cache.data), plan, kernel,
                       selection.prefix);
}

}  // namespace

Result<Plan> Plan::make(const DecodeProblem& problem, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(Selection selection, select(problem, executor));
  return Plan(std::make_shared<Choice>(Choice{problem, executor, device_of(executor), selection}),
              executor.stream);
}

const DecodeProblem& Plan::problem() const {
  return choice_->problem;
}

const Executor& Plan::executor() const {
  return choice_->executor;
}

const char* Plan::kernel() const {
  return choice_->selection.kernel->name;
}

std::size_t Plan::plan_bytes() const {
  return choice_->selection.plan_bytes;
}

std::size_t Plan::workspace_bytes() const {
  return choice_->selection.workspace_bytes;
}

Status Plan::schedule(const PlanLengths& lengths, Memory plan) const {
  const auto& [problem, executor, device, selection] = *choice_;
  FLASHLATENT_RETURN_IF_ERROR(validate_lengths(problem, lengths, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, selection.plan_bytes));
  return build_plan(selection, lengths, {}, nullptr, plan, on_stream(executor, stream_));
}

Status Plan::schedule(const PlanLengths& lengths, const HostPages& pages, Memory plan) const {
  const auto& [problem, executor, device, selection] = *choice_;
  FLASHLATENT_RETURN_IF_ERROR(validate_lengths(problem, lengths, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, selection.plan_bytes));
  const Executor here = on_stream(executor, stream_);
  if (selection.prefix.requests == 0) return build_plan(selection, lengths, {}, nullptr, plan, here);
  FLASHLATENT_RETURN_IF_ERROR(validate_host_pages(problem, pages));
  const prefix::PageTable table{static_cast<const std::int32_t*>(pages.block_table.data),
                                pages.block_table.strides[0], problem.cache.max_pages,
                                problem.cache.page_size,
                                static_cast<const std::int32_t*>(pages.cache_seqlens.data)};
  const bool always = problem.options.prefix_sharing == PrefixSharing::kAlways;
  const prefix::Groups groups = prefix::find_groups(selection.prefix, table, problem.query.tokens, always);
  return build_plan(selection, lengths, groups.list, table.lengths, plan, here);
}

Status Plan::decode(const DecodeInputs& inputs, const DecodeOutputs& outputs, Memory plan,
                    Memory workspace) const {
  const auto& [problem, executor, device, selection] = *choice_;
  FLASHLATENT_RETURN_IF_ERROR(validate_decode(problem, inputs, outputs, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, selection.plan_bytes));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("workspace", workspace, selection.workspace_bytes));
  if (problem.query.batch == 0) return {};
  FLASHLATENT_ASSIGN_OR_RETURN(const DecodeKernel* kernel,
                               kernel_of_call(*selection.kernel, problem, inputs, outputs, executor.kernel));
  return kernel->launch({problem, inputs, outputs, selection.geometry, selection.prefix, plan, workspace,
                         on_stream(executor, stream_)});
}

Result<std::string> Plan::running_kernel(const DecodeInputs& inputs, const DecodeOutputs& outputs) const {
  const auto& [problem, executor, device, selection] = *choice_;
  FLASHLATENT_RETURN_IF_ERROR(validate_decode(problem, inputs, outputs, device));
  FLASHLATENT_ASSIGN_OR_RETURN(const DecodeKernel* kernel,
                               kernel_of_call(*selection.kernel, problem, inputs, outputs, executor.kernel));
  return std::string(kernel->name);
}

Result<PlanDescription> Plan::describe(const PlanLengths& lengths) const {
  FLASHLATENT_RETURN_IF_ERROR(validate_lengths(problem(), lengths, Device{}));
  std::vector<std::max_align_t> memory(plan_bytes() / sizeof(std::max_align_t) + 1);
  const Selection& selection = choice_->selection;
  build_on_host(selection, lengths, {}, memory.data());
  return described(selection, lengths, {memory.data(), memory.size() * sizeof(std::max_align_t)});
}

Result<PlanDescription> Plan::describe(const PlanLengths& lengths, Memory plan) const {
  FLASHLATENT_RETURN_IF_ERROR(validate_lengths(problem(), lengths, Device{}));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, plan_bytes()));
  return described(choice_->selection, lengths, plan);
}

}  // namespace flashlatent
