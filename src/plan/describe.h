// A plan as data to read, print and draw.
#pragma once

#include <string>

#include "flashlatent/plan_description.h"
#include "plan/prefix.h"

namespace flashlatent {

/// describe_plan() for a geometry at hand; `plan` and `lengths` are on the host.
Result<PlanDescription> describe_plan(const schedule::Geometry& geometry, const std::int32_t* lengths,
                                      Memory plan, const std::string& kernel,
                                      const prefix::Shape& prefix = {});

}  // namespace flashlatent
