// Options of making a plan. Reading a plan needs none of them, so they are no part of its Geometry.
#pragma once

#include "plan/schedule.h"

namespace flashlatent::schedule {

struct Building {
  std::int32_t used_parts = 0;  ///< Only the first `used_parts` parts get work; 0: all do.
  /// May requests be packed into parts (packing.h)? Packing takes a device long.
  bool packs = true;

  std::int32_t parts_of(const Geometry& g) const { return used_parts > 0 ? used_parts : g.parts; }
};

}  // namespace flashlatent::schedule
