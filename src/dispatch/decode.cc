// The functions that take a problem and an executor: each makes a Plan for the time of the call.
#include "flashlatent/decode.h"

#include "core/return_if_error.h"
#include "flashlatent/plan.h"
#include "flashlatent/plan_description.h"

namespace flashlatent {

Result<std::size_t> plan_bytes(const DecodeProblem& problem, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Plan made, Plan::make(problem, executor));
  return made.plan_bytes();
}

Result<std::size_t> workspace_bytes(const DecodeProblem& problem, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Plan made, Plan::make(problem, executor));
  return made.workspace_bytes();
}

Status plan(const DecodeProblem& problem, const PlanLengths& lengths, Memory plan, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Plan made, Plan::make(problem, executor));
  return made.schedule(lengths, plan);
}

Status plan(const DecodeProblem& problem, const PlanLengths& lengths, const HostPages& pages, Memory plan,
            const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Plan made, Plan::make(problem, executor));
  return made.schedule(lengths, pages, plan);
}

Result<std::string> running_kernel(const DecodeProblem& problem, const DecodeInputs& inputs,
                                   const DecodeOutputs& outputs, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Plan made, Plan::make(problem, executor));
  return made.running_kernel(inputs, outputs);
}

Status decode(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
              Memory plan, Memory workspace, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Plan made, Plan::make(problem, executor));
  return made.decode(inputs, outputs, plan, workspace);
}

Result<PlanDescription> describe_plan(const DecodeProblem& problem, const PlanLengths& lengths, Memory plan,
                                      const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Plan made, Plan::make(problem, executor));
  return made.describe(lengths, plan);
}

}  // namespace flashlatent
