#include "cost/packing.h"

#include <algorithm>

#include "cost/table.h"
#include "plan/packing.h"

namespace flashlatent::cost {

namespace {

/// Nanoseconds that a call saves for each partial result that a packed plan avoids.
std::int32_t spared_partial(const schedule::Geometry& g) {
  if (g.tile_rows <= 16) return constants(Kernel::kPlan, Tile::kRows16).per_merge;
  if (g.lanes == 1) return constants(Kernel::kPlan, Tile::kRows64).per_merge;
  return constants(Kernel::kPlan, Tile::kTiles).per_merge;
}

/// Equal cuts leave two partial results a part. Packing avoids 0.84 partial results a request, since more
/// requests give more choice, until none are left (docs/log/plans.md).
std::int64_t spared_partials(const schedule::Geometry& g) {
  return std::min(2 * std::int64_t{g.parts}, std::int64_t{g.requests} * 84 / 100);
}

}  // namespace

std::int64_t packing_time(const schedule::Geometry& g, const schedule::Workers& workers) {
  if (!schedule::shapes_may_pack(g)) return 0;
  // Warps pack the stretches side by side, and the requests of a stretch one after another.
  const std::int64_t takes = g.requests / schedule::stretches_of(g).count;
  constexpr Constants kPacking = constants(Kernel::kPlan, Cut::kPacking);
  const std::int64_t time = kPacking.per_call + takes * kPacking.per_member;
  return scaled(static_cast<std::int32_t>(time), workers.clock);
}

std::int64_t packing_gain(const schedule::Geometry& g, const schedule::Workers& workers) {
  if (!schedule::shapes_may_pack(g)) return 0;
  return scaled(static_cast<std::int32_t>(spared_partials(g) * spared_partial(g)), workers.clock);
}

bool packing_pays(const schedule::Geometry& g, int calls, const schedule::Workers& workers) {
  return calls == 0 || calls * packing_gain(g, workers) >= packing_time(g, workers);
}

}  // namespace flashlatent::cost
