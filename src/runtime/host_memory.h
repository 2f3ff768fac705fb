// How much memory a process may have. Programs ask before they take much: systems grant too much memory and
// then end the program that uses it.
#pragma once

#include <string_view>

#include "flashlatent/backend.h"
#include "flashlatent/status.h"

namespace flashlatent::runtime {

/// Bytes that this process may have: the machine's memory, or its control group's limit if that is less.
double host_memory();

/// kExhausted if `bytes` is more than host_memory(): "WHAT needs 12.0 GiB of memory; there are 8.0 GiB".
Status check_host_memory(double bytes, std::string_view what);
/// The same for the executor's device.
Status check_memory(double bytes, std::string_view what, const Executor& executor);

}  // namespace flashlatent::runtime
