// class Plan: the choice that callers keep, and the calls that use it.
#include "flashlatent/plan.h"

#include <cstddef>
#include <vector>

#include "core/apart.h"
#include "core/environment.h"
#include "core/message.h"
#include "core/validate.h"
#include "dispatch/checked.h"
#include "dispatch/layer_edges.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"
#include "plan/chosen_kernel.h"
#include "plan/describe.h"
#include "plan/held_tokens.h"
#include "plan/host_plan.h"
#include "plan/prefix_plan.h"
#include "plan/scratch.h"

namespace flashlatent {

struct Plan::Choice {
  DecodeProblem problem;
  Executor executor;
  Device device;
  Selection selection;
};

namespace {

/// The fields of an executor that a launch needs. The kernel is already chosen, and copying its name may take
/// memory.
Executor on_stream(const Executor& executor, void* stream) {
  return {.backend = executor.backend,
          .device = executor.device,
          .stream = stream,
          .threads = executor.threads,
          .kernel = {}};
}

/// Where ranks share contexts: writes this rank's held tokens to the end of `memory`. Returns nothing if
/// contexts are whole. `contexts`: their lengths, in memory of the executor's device.
Result<schedule::HeldTokens> hold_tokens(const DecodeProblem& problem, const Selection& selection,
                                         const ConstTensorView& contexts, Memory memory,
                                         [[maybe_unused]] const Executor& executor) {
  if (selection.held_bytes == 0) return schedule::HeldTokens{};
  const schedule::HeldShape shape = schedule::held_shape(problem);
  void* place = static_cast<std::byte*>(memory.data) + (memory.bytes - selection.held_bytes);
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    FLASHLATENT_RETURN_IF_ERROR(cuda::hold_tokens(shape, contexts, place, executor));
    return schedule::held_tokens(shape, place);
  }
#endif
  schedule::hold_tokens(shape, static_cast<const std::int32_t*>(contexts.data), contexts.strides[0], place);
  return schedule::held_tokens(shape, place);
}

/// The lengths that a call was given, and this rank's held tokens.
struct Lengths {
  PlanLengths given;
  schedule::HeldTokens held;

  ConstTensorView here() const {
    ConstTensorView view = given.cache;
    if (held.lengths == nullptr) return view;
    view.data = held.lengths;
    view.strides[0] = 1;
    return view;
  }
};

template <class Choice>
WorkspaceSize workspace_of(const Choice& choice) {
  return workspace_with_edges(choice.selection.workspace_bytes, choice.problem);
}

/// Checks what schedule() is given, and holds this rank's tokens in the plan.
template <class Choice>
Result<Lengths> take_lengths(const Choice& choice, const PlanLengths& lengths, Memory plan,
                             const Executor& here) {
  const auto& [problem, executor, device, selection] = choice;
  const Memory used{plan.data, selection.plan_bytes};
  FLASHLATENT_RETURN_IF_ERROR(validate_lengths(problem, lengths, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, used.bytes));
  FLASHLATENT_RETURN_IF_ERROR(expect_apart(lengths, used, device));
  FLASHLATENT_ASSIGN_OR_RETURN(schedule::HeldTokens held,
                               hold_tokens(problem, selection, lengths.cache, used, here));
  return Lengths{lengths, held};
}

/// Calls `use` with the lengths of items with two lists. Ragged requests' missing query tokens cost nothing
/// in the plan, except with fixed splits, because a walk must then find the lengths that the plan had.
template <class Use>
auto with_lists(const Selection& selection, const Lengths& all, Use use) {
  const PlanLengths& lengths = all.given;
  const schedule::UnionLengths lists = schedule::union_lengths(lengths, all.held);
  const bool fixed = selection.geometry.partition == schedule::Partition::kFixedSplits;
  if (!lengths.cu_seqlens_q.present() || fixed) return use(lists);
  return use(schedule::RaggedLengths{lists, static_cast<const std::int32_t*>(lengths.cu_seqlens_q.data)});
}

/// Makes a plan for these groups in host memory. `lengths` must be valid.
void build_on_host(const Selection& selection, const Lengths& lengths, std::span<const prefix::Group> groups,
                   void* memory) {
  const schedule::Geometry g = schedule::with_lengths(selection.geometry, lengths.given);
  if (g.lists == 2) {
    with_lists(selection, lengths, [&](const auto& lists) {
      schedule::build_on_host(g, lists, memory, {.packs = selection.packs});
    });
  } else {
    prefix::build_on_host(g, selection.prefix, groups, static_cast<const std::int32_t*>(lengths.here().data),
                          memory, selection.packs);
  }
}

/// Makes a plan for these groups. `lengths` must be valid; `host_lengths`: held lengths on the host, needed
/// where there are groups.
Status build_plan(const Selection& selection, const Lengths& lengths, std::span<const prefix::Group> groups,
                  [[maybe_unused]] const std::int32_t* host_lengths, Memory plan,
                  [[maybe_unused]] const Executor& executor) {
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    const schedule::Building building{.packs = selection.packs};
    const schedule::Geometry g = schedule::with_lengths(selection.geometry, lengths.given);
    if (g.lists == 2) {
      return with_lists(selection, lengths, [&](const auto& lists) {
        return cuda::build_plan(g, lists, plan, executor, building);
      });
    }
    if (selection.prefix.requests == 0) {
      return cuda::build_plan(g, lengths.here(), plan, executor, building);
    }
    return cuda::build_plan(g, selection.prefix, groups, host_lengths, lengths.here(), plan, executor,
                            building.packs);
  }
#endif
  build_on_host(selection, lengths, groups, plan.data);
  return {};
}

/// Chooses between the two kernels of calls, and makes the near one's plan; nothing if there is none. The far
/// kernel's plan must follow, a launch that waits for this one (cuda::choose_kernel()).
Status plan_near_kernel([[maybe_unused]] const NearKernel& near, [[maybe_unused]] const PlanLengths& lengths,
                        [[maybe_unused]] Memory plan, [[maybe_unused]] const Executor& executor) {
#if FLASHLATENT_WITH_CUDA
  if (near.kernel == nullptr) return {};
  FLASHLATENT_RETURN_IF_ERROR(
      cuda::choose_kernel(lengths.cache, near.most_tokens, near.memory.chosen(plan.data), executor));
  if (!schedule::reads_plan(near.geometry)) return {};
  const Memory of_near{near.memory.near(plan.data), near.memory.near_offset};
  return cuda::build_plan(near.geometry, lengths.cache, of_near, executor, {.packs = near.packs});
#else
  return {};
#endif
}

/// Describes a plan that is on the host. `lengths` must be valid.
Result<PlanDescription> described(const Selection& selection, const Lengths& lengths, Memory plan) {
  const char* kernel = selection.kernel->name;
  const schedule::Geometry g = schedule::with_lengths(selection.geometry, lengths.given);
  if (g.lists == 2) {
    return with_lists(selection, lengths,
                      [&](const auto& lists) { return describe_plan(g, lists, plan, kernel); });
  }
  return describe_plan(g, static_cast<const std::int32_t*>(lengths.here().data), plan, kernel,
                       selection.prefix);
}

}  // namespace

Result<Plan> Plan::make(const DecodeProblem& problem, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(environment::checks_inputs().status());
  FLASHLATENT_ASSIGN_OR_RETURN(Selection selection, select(problem, executor));
  return Plan(std::make_shared<Choice>(Choice{problem, executor, device_of(executor), selection}),
              executor.stream, /*check_inputs=*/false);
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

const char* Plan::near_kernel() const {
  const NearKernel& near = choice_->selection.near;
  return near.kernel == nullptr ? nullptr : near.kernel->name;
}

std::int64_t Plan::near_tokens() const {
  return choice_->selection.near.most_tokens;
}

std::size_t Plan::plan_bytes() const {
  return choice_->selection.plan_bytes;
}

std::size_t Plan::workspace_bytes() const {
  return workspace_of(*choice_).bytes;
}

Status Plan::schedule(const PlanLengths& lengths, Memory plan) const {
  const Executor here = on_stream(choice_->executor, stream_);
  FLASHLATENT_ASSIGN_OR_RETURN(const Lengths own, take_lengths(*choice_, lengths, plan, here));
  FLASHLATENT_RETURN_IF_ERROR(plan_near_kernel(choice_->selection.near, lengths, plan, here));
  return build_plan(choice_->selection, own, {}, nullptr, plan, here);
}

Status Plan::schedule(const PlanLengths& lengths, const HostPages& pages, Memory plan) const {
  const auto& [problem, executor, device, selection] = *choice_;
  if (problem.options.prefix_sharing != PrefixSharing::kOff) {  // also where the kernel cannot share
    FLASHLATENT_RETURN_IF_ERROR(validate_host_pages(problem, pages));
  }
  const Executor here = on_stream(executor, stream_);
  FLASHLATENT_ASSIGN_OR_RETURN(const Lengths own, take_lengths(*choice_, lengths, plan, here));
  if (selection.prefix.requests == 0) {
    FLASHLATENT_RETURN_IF_ERROR(plan_near_kernel(selection.near, lengths, plan, here));
    return build_plan(selection, own, {}, nullptr, plan, here);
  }
  const auto* contexts = static_cast<const std::int32_t*>(pages.cache_seqlens.data);
  std::pmr::vector<std::int32_t> held_lengths(scratch());
  if (const schedule::HeldShape shape = schedule::held_shape(problem); !shape.shard.is_all()) {
    held_lengths.assign(contexts, contexts + problem.query.batch);
    for (std::int32_t& length : held_lengths) length = shape.shard.held(length);
  }
  const prefix::PageTable table{static_cast<const std::int32_t*>(pages.block_table.data),
                                pages.block_table.strides[0], problem.cache.max_pages,
                                problem.cache.page_size,
                                held_lengths.empty() ? contexts : held_lengths.data()};
  const bool always = problem.options.prefix_sharing == PrefixSharing::kAlways;
  const prefix::Groups groups = prefix::find_groups(selection.prefix, table, problem.query.tokens, always);
  return build_plan(selection, own, groups.list, table.lengths, plan, here);
}

Status Plan::decode(const DecodeInputs& inputs, const DecodeOutputs& outputs, Memory plan,
                    Memory workspace) const {
  const auto& [problem, executor, device, selection] = *choice_;
  FLASHLATENT_RETURN_IF_ERROR(validate_decode(problem, inputs, outputs, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, selection.plan_bytes));
  const WorkspaceSize size = workspace_of(*choice_);
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("workspace", workspace, size.bytes));
  FLASHLATENT_RETURN_IF_ERROR(
      expect_apart(inputs, outputs, {plan.data, selection.plan_bytes}, {workspace.data, size.bytes}, device));
  if (problem.query.batch == 0) return {};
  const LayerEdges edges(problem, inputs, outputs, fused_edges(selection, problem, inputs, outputs),
                         static_cast<std::byte*>(workspace.data) + size.edges_begin);
  FLASHLATENT_ASSIGN_OR_RETURN(
      const DecodeKernel* kernel,
      kernel_of_call(*selection.kernel, problem, edges.inputs(), edges.outputs(), executor.kernel));
  const Executor here = on_stream(executor, stream_);
  FLASHLATENT_RETURN_IF_ERROR(check_call(check_inputs_, problem, inputs, here));
  FLASHLATENT_RETURN_IF_ERROR(edges.before(here));
  FLASHLATENT_ASSIGN_OR_RETURN(schedule::HeldTokens held,
                               hold_tokens(problem, selection, inputs.cache_seqlens,
                                           {workspace.data, selection.workspace_bytes}, here));
  const NearKernel& near = selection.near;
  schedule::ChosenKernel choice;
  if (near.kernel != nullptr) {
    FLASHLATENT_ASSIGN_OR_RETURN(const DecodeKernel* of_near,
                                 kernel_of_call(*near.kernel, problem, edges.inputs(), edges.outputs(), {}));
    choice = {near.memory.chosen(plan.data), schedule::KernelRange::kNear};
    const Memory near_plan{near.memory.near(plan.data), near.memory.near_offset};
    FLASHLATENT_RETURN_IF_ERROR(
        of_near->launch({problem, edges.inputs(), edges.outputs(), near.geometry, selection.prefix, near_plan,
                         workspace, here, /*max_logits=*/{}, held, choice}));
    choice.mine = schedule::KernelRange::kFar;
  }
  const schedule::Geometry g = schedule::with_lengths(selection.geometry, lengths_of(problem, inputs));
  FLASHLATENT_RETURN_IF_ERROR(
      kernel->launch({problem, edges.inputs(), edges.outputs(), g, selection.prefix, plan, workspace, here,
                      /*max_logits=*/{}, held, choice}));
  return edges.behind(here);
}

Result<std::string> Plan::running_kernel(const DecodeInputs& inputs, const DecodeOutputs& outputs) const {
  const auto& [problem, executor, device, selection] = *choice_;
  FLASHLATENT_RETURN_IF_ERROR(validate_decode(problem, inputs, outputs, device));
  const LayerEdges edges(problem, inputs, outputs, fused_edges(selection, problem, inputs, outputs),
                         kUnreadRoom);
  FLASHLATENT_ASSIGN_OR_RETURN(
      const DecodeKernel* kernel,
      kernel_of_call(*selection.kernel, problem, edges.inputs(), edges.outputs(), executor.kernel));
  return std::string(kernel->name);
}

Result<PlanDescription> Plan::describe(const PlanLengths& lengths) const {
  FLASHLATENT_RETURN_IF_ERROR(validate_lengths(problem(), lengths, Device{}));
  std::vector<std::max_align_t> memory(plan_bytes() / sizeof(std::max_align_t) + 1);
  const Selection& selection = choice_->selection;
  const Memory plan{memory.data(), plan_bytes()};
  FLASHLATENT_ASSIGN_OR_RETURN(schedule::HeldTokens held,
                               hold_tokens(problem(), selection, lengths.cache, plan, Executor{}));
  const Lengths all{lengths, held};
  build_on_host(selection, all, {}, plan.data);
  return described(selection, all, plan);
}

Result<PlanDescription> Plan::describe(const PlanLengths& lengths, Memory plan) const {
  FLASHLATENT_RETURN_IF_ERROR(validate_lengths(problem(), lengths, Device{}));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("plan", plan, plan_bytes()));
  const Selection& selection = choice_->selection;
  std::vector<std::max_align_t> memory(selection.held_bytes / sizeof(std::max_align_t) + 1);
  FLASHLATENT_ASSIGN_OR_RETURN(
      schedule::HeldTokens held,
      hold_tokens(problem(), selection, lengths.cache, {memory.data(), selection.held_bytes}, Executor{}));
  return described(selection, {lengths, held}, plan);
}

}  // namespace flashlatent
