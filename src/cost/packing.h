// Whether packing a plan's requests into parts pays: the device takes longer to plan, and each call gains a
// little.
#pragma once

#include <cstdint>

#include "plan/schedule.h"
#include "plan/workers.h"

namespace flashlatent::cost {

/// Nanoseconds that packing adds to making a plan on the device; 0 if shapes say that nothing is ever packed.
std::int64_t packing_time(const schedule::Geometry& g, const schedule::Workers& workers);
/// Nanoseconds that each call saves with a packed plan, for varied lengths.
std::int64_t packing_gain(const schedule::Geometry& g, const schedule::Workers& workers);

/// Is a plan packed that `calls` calls read (DecodeProblem::Options::calls_per_plan; 0: many)?
bool packing_pays(const schedule::Geometry& g, int calls, const schedule::Workers& workers);

}  // namespace flashlatent::cost
