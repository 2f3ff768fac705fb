// How calls are cut by teams: clusters of CTAs that share a segment's blocks, for calls too small to fill the
// device.
#pragma once

#include <algorithm>

#include "choose/latent.h"
#include "cost/table.h"
#include "plan/call_times.h"

namespace flashlatent::choose {

/// Row tiles, team size and costs of a kernel.
struct TeamShape {
  int tile_rows;
  int team;
  cost::TeamCosts costs;
};

/// So many teams, or as many as the device holds at once, if the device has been asked and holds fewer.
inline int within_room(int teams, int team, const schedule::Workers& workers) {
  return workers.room.is_known() ? std::min(teams, workers.room.clusters_of(team)) : teams;
}

/// The schedule: for each row tile of a request a team, or several teams if there is room and they pay.
schedule::Geometry team_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                 const TeamShape& shape);

/// What a call takes by this geometry.
schedule::CallTimes team_times(const schedule::Geometry& geometry, const schedule::Workers& workers,
                               const TeamShape& shape);

}  // namespace flashlatent::choose
