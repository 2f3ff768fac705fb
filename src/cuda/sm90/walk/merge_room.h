// Room in the workspace for code that merges partial results.
#pragma once

namespace flashlatent::sm90 {

/// Used by merge/ticket.cuh.
using Ticket = unsigned long long;

/// The state of kernels that run the combine step themselves (merge/merge_step.cuh).
inline constexpr int kMergeStateBytes = 256;
inline constexpr int kMostMergingCtas = 4095;  // the limit of its counts

}  // namespace flashlatent::sm90
