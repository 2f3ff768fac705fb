// What kernels by teams share on the host: clusters of CTAs that share a segment's blocks, for calls too
// small to fill the device.
#pragma once

#include "cuda/common/dense_choice.h"

namespace flashlatent::cuda {

/// Nanoseconds. A CTA's time is
///   call + blocks * (what a block takes)
/// and a block takes block_streaming where all SMs read from memory, in proportion less where fewer do, but
/// never less than block_alone; but block_here if it need not be waited for: one of the first few, which are
/// on their way before any is needed, or of several row tiles', which find it in L2.
struct TeamCosts {
  int call;          ///< Launch, until the first block is there, exchange, output.
  int shared_merge;  ///< Teams that share a request merge in the kernel.
  /// The same, of one row tile, where most requests have one team: what those with the longest share wait. Of
  /// several it is not counted less: it is seesaw that is beside them then, and estimated too high.
  int lone_merge;
  int block_here, block_alone, block_streaming;
  int lone_request = 0;  ///< What teams that share a lone request take beside that: they merge sooner.
};

/// One kernel's.
struct TeamShape {
  int tile_rows;
  int team;
  TeamCosts costs;
};

/// Each row tile of a request is a team's, or several teams' if there is room for these and it pays.
schedule::Geometry team_geometry(const DecodeProblem& problem, int workers, const TeamShape& shape);

/// With room for partial results of teams that share a request, and what these merges are counted by, at
/// most. Smaller batches than the problem's need no more: callers ask at the largest.
std::size_t team_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// Why teams do not take what they cannot keep.
std::string not_invariant();

}  // namespace flashlatent::cuda
