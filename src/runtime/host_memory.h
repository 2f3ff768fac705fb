// How much memory there is: asked before work that would take more, which systems promise and then end the
// program for.
#pragma once

#include <string_view>

#include "flashlatent/backend.h"
#include "flashlatent/status.h"

namespace flashlatent::runtime {

/// Bytes of memory that this process may have: the machine's, or its control group's where that is less.
double host_memory();

/// kExhausted if `bytes` are more than host_memory(): "WHAT needs 12.0 GiB of memory; there are 8.0 GiB".
Status check_host_memory(double bytes, std::string_view what);
/// The same of the executor's device.
Status check_memory(double bytes, std::string_view what, const Executor& executor);

}  // namespace flashlatent::runtime
