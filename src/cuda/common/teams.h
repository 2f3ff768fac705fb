// What kernels by teams share on the host: clusters of CTAs that share a segment's blocks, for calls too
// small to fill the device.
#pragma once

#include "cost/table.h"
#include "cuda/common/dense_choice.h"

namespace flashlatent::cuda {

/// One kernel's.
struct TeamShape {
  int tile_rows;
  int team;
  cost::TeamCosts costs;
};

/// Each row tile of a request is a team's, or several teams' if there is room for these and it pays.
schedule::Geometry team_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                 const TeamShape& shape);

/// With room for partial results of teams that share a request, and what these merges are counted by, at
/// most. Smaller batches than the problem's need no more: callers ask at the largest.
std::size_t team_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// Why teams do not take what they cannot keep.
std::string not_invariant();

}  // namespace flashlatent::cuda
