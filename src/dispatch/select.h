// From a problem and an executor to a kernel and its schedule geometry.
#pragma once

#include "dispatch/kernel.h"
#include "flashlatent/plan.h"

namespace flashlatent {

struct Selection {
  const DecodeKernel* kernel = nullptr;
  schedule::Geometry geometry;
};

/// The first kernel of the executor's backend that takes the problem, or the one that the executor names;
/// otherwise kUnsupported with why each kernel declined.
Result<Selection> select(const DecodeProblem& problem, const Executor& executor);

/// describe_plan() for a geometry at hand; `plan` and `lengths` are on the host.
Result<PlanDescription> describe_plan(const schedule::Geometry& geometry, const std::int32_t* lengths,
                                      Memory plan, const std::string& kernel);

/// Where an executor's tensors must be.
Device device_of(const Executor& executor);

/// Can this executor run here at all?
Status validate(const Executor& executor);

}  // namespace flashlatent
