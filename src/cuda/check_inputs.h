// check_inputs() for callers that wait.
#pragma once

#include "core/input_check.h"
#include "flashlatent/backend.h"
#include "flashlatent/status.h"

namespace flashlatent::cuda {

/// Is the executor's stream captured into a CUDA graph?
Result<bool> is_captured(const Executor& executor);

/// The first offence, once the stream has run the check. Each calling thread keeps 32 bytes of pinned memory.
Result<InputOffence> find_offence(const input_check::Tables& tables, const Executor& executor);

}  // namespace flashlatent::cuda
