// Packs a line on the host: the lists from which packing.h's rules take items.
#pragma once

#include "plan/plan_memory.h"

namespace flashlatent::schedule {

/// Replaces the cuts and successors by packed ones, if packing leaves fewer partial results than the present
/// cuts. Places of partial results are not set.
void pack_items(const Geometry& g, PlanView plan);

}  // namespace flashlatent::schedule
