// Makes plans on the host.
#pragma once

#include "plan/building.h"
#include "plan/plan_memory.h"
#include "plan/ragged_lengths.h"

namespace flashlatent::schedule {

/// Writes the plan into `memory`, plan_bytes(geometry) long. `lengths`: one for length_sharers requests;
/// null: all are max_tokens.
void build_on_host(const Geometry& geometry, const std::int32_t* lengths, void* memory,
                   const Building& building = {});
/// The same for items with two lists of tokens, and for ragged requests. Their splits are never fixed.
void build_on_host(const Geometry& geometry, const UnionLengths& lengths, void* memory,
                   const Building& building = {});
void build_on_host(const Geometry& geometry, const RaggedLengths& lengths, void* memory,
                   const Building& building = {});

}  // namespace flashlatent::schedule
