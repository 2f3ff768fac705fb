// A plan as data to read, print and draw.
#pragma once

#include <string>

#include "flashlatent/plan_description.h"
#include "plan/prefix.h"
#include "plan/ragged_lengths.h"

namespace flashlatent {

/// describe_plan() where the geometry is known; `plan` and `lengths` are on the host.
Result<PlanDescription> describe_plan(const schedule::Geometry& geometry, const std::int32_t* lengths,
                                      Memory plan, const std::string& kernel,
                                      const prefix::Shape& prefix = {});
/// The same for items with two lists of tokens, and for ragged requests.
Result<PlanDescription> describe_plan(const schedule::Geometry& geometry,
                                      const schedule::UnionLengths& lengths, Memory plan,
                                      const std::string& kernel);
Result<PlanDescription> describe_plan(const schedule::Geometry& geometry,
                                      const schedule::RaggedLengths& lengths, Memory plan,
                                      const std::string& kernel);

}  // namespace flashlatent
