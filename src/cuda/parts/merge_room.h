// What those that merge partial results have room for in the workspace.
#pragma once

namespace flashlatent::parts {

/// Of those that leave parts of a result (parts/ticket.cuh).
using Ticket = unsigned long long;

/// Of kernels that do the combine step themselves (parts/merge_step.cuh).
inline constexpr int kMergeStateBytes = 256;
inline constexpr int kMostMergingCtas = 4095;  // it counts them

}  // namespace flashlatent::parts
