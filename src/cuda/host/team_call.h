// What kernels by teams have in common on the host beside a launch.
#pragma once

#include <string>

#include "kernel/decode_kernel.h"

namespace flashlatent::cuda {

/// Bytes for the partial results of teams that share a request, and for the merges' counters, at most.
/// Smaller batches than the problem's need no more.
std::size_t team_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// Why a kernel by teams does not take batch_invariant.
std::string not_invariant();

}  // namespace flashlatent::cuda
