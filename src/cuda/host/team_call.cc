#include "cuda/host/team_call.h"

#include <algorithm>

#include "cuda/host/geometry.h"
#include "cuda/sm90/walk/merge_room.h"
#include "cuda/sm90/walk/team_room.h"

namespace flashlatent::cuda {

std::size_t team_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  const std::size_t rows = g.tile_rows;
  // values and tags, as UnitPartial has them (merge/team_merge.cuh)
  const std::size_t partial =
      rows * problem.cache.v_dim * 8 + sm90::kMostUnits * (rows * 16 + sm90::kUnitMergesBytes);
  return std::max(decode_workspace_bytes(problem, g),
                  sm90::kMergeStateBytes + sm90::kMostTeamCtas / g.team * partial);
}

std::string not_invariant() {
  return "batch_invariant is true; false is accepted, since the batch decides how a request is shared out";
}

}  // namespace flashlatent::cuda
