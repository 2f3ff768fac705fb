// What the roles of a team's CTA can know before the launch before theirs is done.
#pragma once

#include "cuda/parts/segments.cuh"

namespace flashlatent::parts {

/// Has a part one segment, that can be known before the launch before this one is done?
template <int kTeam>
__device__ __forceinline__ bool known_ahead(const DecodeArguments& args) {
  return PartPlace<kTeam>::by_shape(args.geometry) && args.query.begins == nullptr;
}

/// Reads the plan if the part is not known ahead. The branch, which __syncwarp() keeps one, spares who knows
/// it the wait for reads that are only not taken: they would share a scoreboard with those of Q.
template <int kTeam>
__device__ __forceinline__ Segments<kTeam> find_segments(const DecodeArguments& args,
                                                         const PartPlace<kTeam>& place, bool known) {
  schedule::Cut begin, end{};
  if (known) {
    begin = place.begin_by_shape();
  } else {
    begin = place.begin(args);
    end = place.end(args);
    __syncwarp();
  }
  return {args, place.lane(), begin, end};
}

}  // namespace flashlatent::parts
