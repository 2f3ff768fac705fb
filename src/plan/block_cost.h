// What a block costs while only some parts have work. Decode kernels do not include this file.
#pragma once

#include "plan/schedule.h"

namespace flashlatent::schedule {

/// Cost of a block if only `parts` parts have work. Up to half of all parts, fewer parts share the memory's
/// bandwidth, until a block takes as long as alone. With more, some neighbours share a way to memory as all
/// do (six multiprocessors; docs/log/dense_large.md), and a call takes as long as its slowest part: from half
/// of the parts to all of them the cost rises to per_block in a straight line.
FLASHLATENT_HOST_DEVICE std::int32_t block_cost_among(const Geometry& g, std::int64_t parts) {
  const std::int32_t all = g.cost.per_block, alone = g.cost.per_block_alone;
  if (alone == 0 || alone >= all || parts >= g.parts) return all;
  if (2 * parts <= g.parts) {
    const auto shared = static_cast<std::int32_t>(quotient(all * parts, g.parts));
    return shared > alone ? shared : alone;
  }
  const std::int32_t half = alone > all / 2 ? alone : all / 2;
  return half + static_cast<std::int32_t>(quotient((all - half) * (2 * parts - g.parts), g.parts));
}

/// Cost of a block if items stay whole.
FLASHLATENT_HOST_DEVICE std::int32_t whole_block_cost(const Geometry& g) {
  return block_cost_among(g, static_cast<std::int64_t>(g.requests) * g.rounds);
}

}  // namespace flashlatent::schedule
