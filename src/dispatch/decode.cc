#include "flashlatent/decode.h"

#include "core/message.h"
#include "core/validate.h"
#include "dispatch/select.h"
#include "plan/describe.h"
#include "plan/host_plan.h"
#include "plan/prefix_plan.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace flashlatent {

Result<std::size_t> plan_bytes(const DecodeProblem& problem, const Executor& executor) {
  Result<Selection> selection = select(problem, executor);
  if (!selection.ok()) return selection.status();
  return selection->plan_bytes;
}

Result<std::size_t> workspace_bytes(const DecodeProblem& problem, const Executor& executor) {
  Result<Selection> selection = select(problem, executor);
  if (!selection.ok()) return selection.status();
  return selection->workspace_bytes;
}

namespace {

/// A plan for these groups; `lengths` are valid. `host_lengths`: where there are groups, the same on the
/// host.
Status build_plan(const Selection& selection, const ConstTensorView& lengths,
                  const std::vector<prefix::Group>& groups, [[maybe_unused]] const std::int32_t* host_lengths,
                  Memory plan, [[maybe_unused]] const Executor& executor) {
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    if (selection.prefix.requests == 0) return cuda::build_plan(selection.geometry, lengths, plan, executor);
    return cuda::build_plan(selection.geometry, selection.prefix, groups, host_lengths, lengths, plan,
                            executor);
  }
#endif
  prefix::build_on_host(selection.geometry, selection.prefix, groups,
                        static_cast<const std::int32_t*>(lengths.data), plan.data);
  return {};
}

}  // namespace

Status plan(const Selection& selection, const DecodeProblem& problem, const ConstTensorView& lengths,
            Memory plan, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate_lengths(problem, lengths, device_of(executor)));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, selection.plan_bytes));
  return build_plan(selection, lengths, {}, nullptr, plan, executor);
}

Status plan(const Selection& selection, const DecodeProblem& problem, const ConstTensorView& lengths,
            const HostPages& pages, Memory plan, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate_lengths(problem, lengths, device_of(executor)));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, selection.plan_bytes));
  if (selection.prefix.requests == 0) return build_plan(selection, lengths, {}, nullptr, plan, executor);
  FLASHLATENT_RETURN_IF_ERROR(validate_host_pages(problem, pages));
  const prefix::PageTable table{static_cast<const std::int32_t*>(pages.block_table.data),
                                pages.block_table.strides[0], problem.cache.max_pages,
                                problem.cache.page_size,
                                static_cast<const std::int32_t*>(pages.cache_seqlens.data)};
  const bool always = problem.options.prefix_sharing == PrefixSharing::kAlways;
  return build_plan(selection, lengths,
                    prefix::find_groups(selection.prefix, table, problem.query.tokens, always), table.lengths,
                    plan, executor);
}

Result<const DecodeKernel*> kernel_of_call(const Selection& selection, const DecodeProblem& problem,
                                           const DecodeInputs& inputs, const DecodeOutputs& outputs,
                                           const Executor& executor) {
  if (selection.kernel->substitute == nullptr) return selection.kernel;
  const std::optional<Substitute> other = selection.kernel->substitute(problem, inputs, outputs);
  if (!other) return selection.kernel;
  if (executor.kernel.empty()) return other->kernel;
  return unsupported("kernel is '", executor.kernel, "', but ", other->reason, "; without a kernel by name ",
                     other->kernel->name, " runs");
}

Result<std::string> running_kernel(const DecodeProblem& problem, const DecodeInputs& inputs,
                                   const DecodeOutputs& outputs, const Executor& executor) {
  Result<Selection> selection = select(problem, executor);
  if (!selection.ok()) return selection.status();
  FLASHLATENT_RETURN_IF_ERROR(validate_decode(problem, inputs, outputs, device_of(executor)));
  Result<const DecodeKernel*> kernel = kernel_of_call(*selection, problem, inputs, outputs, executor);
  if (!kernel.ok()) return kernel.status();
  return std::string((*kernel)->name);
}

Status decode(const Selection& selection, const DecodeProblem& problem, const DecodeInputs& inputs,
              const DecodeOutputs& outputs, Memory plan, Memory workspace, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate_decode(problem, inputs, outputs, device_of(executor)));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, selection.plan_bytes));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("workspace", workspace, selection.workspace_bytes));
  if (problem.query.batch == 0) return {};
  Result<const DecodeKernel*> kernel = kernel_of_call(selection, problem, inputs, outputs, executor);
  if (!kernel.ok()) return kernel.status();
  return (*kernel)->launch({problem, inputs, outputs, selection.geometry, plan, workspace, executor});
}

Status plan(const DecodeProblem& problem, const ConstTensorView& lengths, Memory plan,
            const Executor& executor) {
  Result<Selection> selection = select(problem, executor);
  if (!selection.ok()) return selection.status();
  return flashlatent::plan(*selection, problem, lengths, plan, executor);
}

Status plan(const DecodeProblem& problem, const ConstTensorView& lengths, const HostPages& pages, Memory plan,
            const Executor& executor) {
  Result<Selection> selection = select(problem, executor);
  if (!selection.ok()) return selection.status();
  return flashlatent::plan(*selection, problem, lengths, pages, plan, executor);
}

Status decode(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
              Memory plan, Memory workspace, const Executor& executor) {
  Result<Selection> selection = select(problem, executor);
  if (!selection.ok()) return selection.status();
  return decode(*selection, problem, inputs, outputs, plan, workspace, executor);
}

Result<PlanDescription> describe_plan(const DecodeProblem& problem, const ConstTensorView& lengths,
                                      Memory plan, const Executor& executor) {
  Result<Selection> selection = select(problem, executor);
  if (!selection.ok()) return selection.status();
  const schedule::Geometry& g = selection->geometry;
  FLASHLATENT_RETURN_IF_ERROR(validate_lengths(problem, lengths, Device{}));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, selection->plan_bytes));
  return describe_plan(g, static_cast<const std::int32_t*>(lengths.data), plan, selection->kernel->name,
                       selection->prefix);
}

}  // namespace flashlatent
