// The calls that take a problem and an executor: a Plan for the time of the call.
#include "flashlatent/decode.h"

#include "flashlatent/plan.h"
#include "flashlatent/plan_description.h"

namespace flashlatent {

Result<std::size_t> plan_bytes(const DecodeProblem& problem, const Executor& executor) {
  const Result<Plan> made = Plan::make(problem, executor);
  if (!made.ok()) return made.status();
  return made->plan_bytes();
}

Result<std::size_t> workspace_bytes(const DecodeProblem& problem, const Executor& executor) {
  const Result<Plan> made = Plan::make(problem, executor);
  if (!made.ok()) return made.status();
  return made->workspace_bytes();
}

Status plan(const DecodeProblem& problem, const PlanLengths& lengths, Memory plan, const Executor& executor) {
  const Result<Plan> made = Plan::make(problem, executor);
  if (!made.ok()) return made.status();
  return made->schedule(lengths, plan);
}

Status plan(const DecodeProblem& problem, const PlanLengths& lengths, const HostPages& pages, Memory plan,
            const Executor& executor) {
  const Result<Plan> made = Plan::make(problem, executor);
  if (!made.ok()) return made.status();
  return made->schedule(lengths, pages, plan);
}

Result<std::string> running_kernel(const DecodeProblem& problem, const DecodeInputs& inputs,
                                   const DecodeOutputs& outputs, const Executor& executor) {
  const Result<Plan> made = Plan::make(problem, executor);
  if (!made.ok()) return made.status();
  return made->running_kernel(inputs, outputs);
}

Status decode(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
              Memory plan, Memory workspace, const Executor& executor) {
  const Result<Plan> made = Plan::make(problem, executor);
  if (!made.ok()) return made.status();
  return made->decode(inputs, outputs, plan, workspace);
}

Result<PlanDescription> describe_plan(const DecodeProblem& problem, const PlanLengths& lengths, Memory plan,
                                      const Executor& executor) {
  const Result<Plan> made = Plan::make(problem, executor);
  if (!made.ok()) return made.status();
  return made->describe(lengths, plan);
}

}  // namespace flashlatent
