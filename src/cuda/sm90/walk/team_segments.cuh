// What the roles of a team's CTA can know before the previous launch is done.
#pragma once

#include "cuda/sm90/walk/segments.cuh"

namespace flashlatent::sm90 {

/// Has the part one segment that is known before the previous launch is done?
template <int kTeam>
__device__ __forceinline__ bool known_ahead(const DecodeArguments& args) {
  return PartPlace<kTeam>::by_shape(args.geometry) && args.query.begins == nullptr;
}

/// The part's segments; reads the plan if the part is not known ahead. __syncwarp() keeps this a branch: with
/// predicated loads a CTA that knows its part would wait for them, too, since they share a scoreboard with
/// Q's loads.
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

}  // namespace flashlatent::sm90
