// Costs by which kernels are picked and calls are cut on GPUs. The library has a table of an H200, which it
// scales by bandwidth and clock for others; a GPU may be given a table of its own.
#pragma once

#include <string>
#include <string_view>

#include "flashlatent/status.h"

namespace flashlatent {

/// The table that applies to GPUs of this name ("H20", "NVIDIA H200"): the one that was set for it, else the
/// built-in table of an H200. It has a line for each kernel and situation, in nanoseconds
/// (docs/architecture.md, "Costs").
std::string costs_text(std::string_view gpu);

/// Sets a table, in the form that costs_text() gives, for GPUs whose name begins with the table's `gpu` line;
/// it replaces an earlier table for the same name. Only before the process first asks for a GPU: a plan in
/// device memory depends on the costs with which it was made, and a call with other costs would read it
/// wrongly. kInvalidArgument: a GPU has been asked for, or the text is no table; the message names the line,
/// what it says and what would do.
Status set_costs(std::string_view text);

/// set_costs() of a file. The environment variable FLASHLATENT_COSTS names a file that is loaded when a GPU
/// is first asked for; while it names no table, calls on GPUs fail. kInvalidArgument: the file cannot be
/// read, or is no table.
Status load_costs(const std::string& path);

}  // namespace flashlatent
