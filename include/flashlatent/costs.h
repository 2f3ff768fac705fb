// Costs by which kernels are picked and calls are cut on GPUs. The library has a table of an H200, which it
// scales by bandwidth and clock for others; a GPU may be given a table of its own.
#pragma once

#include <string>
#include <string_view>

#include "flashlatent/status.h"

namespace flashlatent {

/// The table that holds for GPUs of this name ("H20", "NVIDIA H200"): one that was set for it, else the
/// built-in one, of an H200. A line a kernel and kind of call, nanoseconds; docs/architecture.md, "Costs",
/// says what they are.
std::string costs_text(std::string_view gpu);

/// From now on GPUs whose name begins with the table's `gpu` line go by this table, in the form that
/// costs_text() gives; a later table for the same name takes the place of an earlier one. Only before the
/// process first asks for a GPU: a plan in device memory follows from the costs at that time, and a call by
/// other costs would read it wrongly. kInvalidArgument: a GPU has been asked for, or the text is no table;
/// the message names the line, what it says and what would do.
Status set_costs(std::string_view text);

/// set_costs() of a file. The environment variable FLASHLATENT_COSTS names a file that is loaded when a GPU
/// is first asked for; it fails calls on GPUs until it names a table. kInvalidArgument: the file cannot be
/// read, or is no table.
Status load_costs(const std::string& path);

}  // namespace flashlatent
