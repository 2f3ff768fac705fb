#include "flashlatent/check_inputs.h"

#include <utility>

#include "core/expect.h"
#include "core/input_check.h"
#include "core/message.h"
#include "core/validate.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"

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

}  // namespace

Status check_inputs(const DecodeProblem& problem, const DecodeInputs& inputs, const Executor& executor) {
  if (executor.backend != Backend::kCpu) {
    return invalid_argument(
        "executor.backend is ", to_string(executor.backend),
        ", where this call would have to wait; pass memory of the device for the offence, "
        "and read it when the stream has come by");
  }
  FLASHLATENT_RETURN_IF_ERROR(validate_call(problem, inputs, executor));
  FLASHLATENT_RETURN_IF_ERROR(to_status(offence_on_host(problem, inputs)));
  for (const auto& [name, scale] : {std::pair{"kv_scale", &inputs.kv_scale},
                                    {"q_scale", &inputs.q_scale},
                                    {"key_scale", &inputs.key_scale},
                                    {"value_scale", &inputs.value_scale}}) {
    FLASHLATENT_RETURN_IF_ERROR(expect_positive(name, *scale));
  }
  return {};
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

}  // namespace flashlatent
