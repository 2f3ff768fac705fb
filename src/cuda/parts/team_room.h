// What teams that share requests have room for, in the workspace and where one adds up what all have.
#pragma once

namespace flashlatent::parts {

inline constexpr int kMostTeamCtas = 128;    // at once, of all teams
inline constexpr int kMostUnits = 16;        // of a tile (team.cuh)
inline constexpr int kUnitMergesBytes = 16;  // UnitMerges (team_merge.cuh)

}  // namespace flashlatent::parts
