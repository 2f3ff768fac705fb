// Describes the machine that results were measured on, for JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "flashlatent/backend.h"

namespace flashlatent::tools {

/// {gpu, driver, cuda, clocks, host}; the first four are null on the CPU.
nlohmann::ordered_json describe_machine(const Executor& executor);

}  // namespace flashlatent::tools
