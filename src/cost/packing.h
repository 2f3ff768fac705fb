// Does packing a plan's requests into parts pay? It takes the device long, and each call gains a little.
#pragma once

#include <cstdint>

#include "plan/schedule.h"
#include "plan/workers.h"

namespace flashlatent::cost {

/// Nanoseconds that packing adds to a plan on a device; 0 if shapes say that nothing is ever packed.
std::int64_t packing_time(const schedule::Geometry& g, const schedule::Workers& workers);
/// Nanoseconds that a call takes less by a packed plan, for varied lengths.
std::int64_t packing_gain(const schedule::Geometry& g, const schedule::Workers& workers);

/// Is a plan packed that so many calls read (DecodeProblem::Options::calls_per_plan; 0: many)?
bool packing_pays(const schedule::Geometry& g, int calls, const schedule::Workers& workers);

}  // namespace flashlatent::cost
