// Partition::kTurns: part k has items k, k + parts, k + 2 parts, ..., whole ones, for any lengths. Nothing is
// merged and no plan is read. It suits very many items, as in sparse prefill.
#pragma once

#include "plan/whole.h"

namespace flashlatent::schedule {

/// The part's item after the cut's item; past the last one its round is g.rounds or more. A part's first item
/// is whole_cut().
FLASHLATENT_HOST_DEVICE Cut turn_after(const Geometry& g, Cut cut) {
  cut.request += g.parts;
  while (cut.request >= g.requests) {
    cut.request -= g.requests;
    ++cut.round;
  }
  return cut;
}

}  // namespace flashlatent::schedule
