// Partition::kWhole: part k is item k, for any lengths. Nothing is merged, and a kernel knows its part
// without reading the plan.
#pragma once

#include "plan/schedule.h"

namespace flashlatent::schedule {

/// Where part k begins.
FLASHLATENT_HOST_DEVICE Cut whole_cut(const Geometry& g, std::int32_t k) {
  return {k / g.requests, k % g.requests, 0, 0};
}

}  // namespace flashlatent::schedule
