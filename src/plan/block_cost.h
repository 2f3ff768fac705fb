// What a block costs while only some parts have work. Decode kernels do not include this file.
#pragma once

#include "plan/schedule.h"

namespace flashlatent::schedule {

/// Cost of a block if only `parts` parts have work: the longest of three times. Memory's time, which the
/// parts share; a lone part's time; and the slowest part's time. Six multiprocessors share a way to memory
/// (docs/log/mla_64_pingpong.md): with more than half of the parts some share it fully. So from half of the
/// parts to all of them the slowest part's time rises linearly from per_block_alone to per_block_near.
FLASHLATENT_HOST_DEVICE std::int32_t block_cost_among(const Geometry& g, std::int64_t parts) {
  const std::int32_t all = g.cost.per_block, alone = g.cost.per_block_alone;
  if (alone == 0 || alone >= all || parts >= g.parts) return all;
  const auto shared = static_cast<std::int32_t>(quotient(all * parts, g.parts));
  std::int32_t slowest = alone;
  const std::int32_t near = g.cost.per_block_near == 0 ? all : g.cost.per_block_near;
  if (2 * parts > g.parts && near > alone) {
    slowest += static_cast<std::int32_t>(quotient((near - alone) * (2 * parts - g.parts), g.parts));
  }
  return shared > slowest ? shared : slowest;
}

/// Cost of a block if items stay whole.
FLASHLATENT_HOST_DEVICE std::int32_t whole_block_cost(const Geometry& g) {
  return block_cost_among(g, static_cast<std::int64_t>(g.requests) * g.rounds);
}

}  // namespace flashlatent::schedule
