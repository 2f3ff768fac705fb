// Partition::kTurns: part k does items k, k + parts, k + 2 parts, ..., each of them whole, whatever the
// lengths. Nothing is merged and nobody reads a plan. It suits very many items, as sparse prefill has.
#pragma once

#include "plan/whole.h"

namespace flashlatent::schedule {

/// The item that a part does after the cut's item; past the last one its round is g.rounds or more. A part's
/// first item is whole_cut().
FLASHLATENT_HOST_DEVICE Cut turn_after(const Geometry& g, Cut cut) {
  cut.request += g.parts;
  while (cut.request >= g.requests) {
    cut.request -= g.requests;
    ++cut.round;
  }
  return cut;
}

}  // namespace flashlatent::schedule
