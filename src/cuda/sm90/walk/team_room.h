// Limits of teams that share requests: they size the workspace.
#pragma once

namespace flashlatent::sm90 {

inline constexpr int kMostTeamCtas = 128;    // resident at once, of all teams
inline constexpr int kMostUnits = 16;        // of a tile (team.cuh)
inline constexpr int kUnitMergesBytes = 16;  // UnitMerges (team_merge.cuh)

}  // namespace flashlatent::sm90
