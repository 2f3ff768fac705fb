#include "flashlatent/check_inputs.h"

#include <utility>

#include "core/environment.h"
#include "core/expect.h"
#include "core/input_check.h"
#include "core/message.h"
#include "core/validate.h"
#include "dispatch/checked.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/check_inputs.h"
#endif

namespace flashlatent {

namespace {

Status validate_call(const DecodeProblem& problem, const DecodeInputs& inputs, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(problem));
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  return validate_inputs(problem, inputs, device_of(executor));
}

InputOffence offence_on_host(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const input_check::Tables tables = input_check::tables_of(problem, inputs);
  return input_check::offence_at(tables, input_check::first_place(tables));
}

/// The check of a call on the CPU whose tensors fit.
Status check_on_host(const DecodeProblem& problem, const DecodeInputs& inputs) {
  FLASHLATENT_RETURN_IF_ERROR(to_status(offence_on_host(problem, inputs)));
  for (const auto& [name, scale] : {std::pair{"kv_scale", &inputs.kv_scale},
                                    {"q_scale", &inputs.q_scale},
                                    {"key_scale", &inputs.key_scale},
                                    {"value_scale", &inputs.value_scale}}) {
    FLASHLATENT_RETURN_IF_ERROR(expect_positive(name, *scale));
  }
  return {};
}

}  // namespace

Status check_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, const Executor& executor) {
  if (executor.backend != Backend::kCpu) {
    return invalid_argument(
        "executor.backend is ", to_string(executor.backend),
        ", where this call would have to wait; pass memory of the device for the offence, "
        "and read it when the stream has come by");
  }
  FLASHLATENT_RETURN_IF_ERROR(validate_call(problem, inputs, executor));
  return check_on_host(problem, inputs);
}

Status check_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, Memory offence,
                    const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate_call(problem, inputs, executor));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("offence", offence, kInputOffenceBytes, alignof(InputOffence)));
  auto* found = static_cast<InputOffence*>(offence.data);
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    return cuda::check_inputs(input_check::tables_of(problem, inputs), found, executor);
  }
#endif
  *found = offence_on_host(problem, inputs);
  return {};
}

Status check_call(bool wanted, const DecodeProblem& problem, const DecodeInputs& inputs,
                  [[maybe_unused]] const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const bool always, environment::checks_inputs());
  if (!wanted && !always) return {};
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    FLASHLATENT_ASSIGN_OR_RETURN(const bool captured, cuda::is_captured(executor));
    if (captured && !wanted) return {};
    if (captured) {
      return invalid_argument(
          "check_inputs is on, and the stream is captured into a CUDA graph, where no call can wait; a Plan "
          "without it is accepted there");
    }
    FLASHLATENT_ASSIGN_OR_RETURN(const InputOffence found,
                                 cuda::find_offence(input_check::tables_of(problem, inputs), executor));
    return to_status(found);
  }
#endif
  return check_on_host(problem, inputs);
}

}  // namespace flashlatent
