// Room in the workspace for code that merges partial results.
#pragma once

namespace flashlatent::parts {

/// Used by parts/ticket.cuh.
using Ticket = unsigned long long;

/// The state of kernels that do the combine step themselves (parts/merge_step.cuh).
inline constexpr int kMergeStateBytes = 256;
inline constexpr int kMostMergingCtas = 4095;  // the limit of its counts

}  // namespace flashlatent::parts
