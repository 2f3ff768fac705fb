// All that the library reads of the environment. docs/api.md, "Environment", lists the variables.
#pragma once

#include <string_view>

#include "flashlatent/status.h"

namespace flashlatent::environment {

/// FLASHLATENT_BACKEND as it is now; empty if it is not set.
std::string_view backend();

/// FLASHLATENT_COSTS as it is now; empty if it is not set.
std::string_view costs();

/// Does FLASHLATENT_CHECK_INPUTS have every call of the process checked? It is read once. kInvalidArgument
/// for a value other than 0 and 1; not set and empty count as 0.
Result<bool> checks_inputs();

/// What a value of FLASHLATENT_CHECK_INPUTS says.
Result<bool> checks_inputs(std::string_view value);

}  // namespace flashlatent::environment
