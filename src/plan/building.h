// How a plan is made, beside its geometry. Who reads a plan need not know.
#pragma once

#include "plan/schedule.h"

namespace flashlatent::schedule {

struct Building {
  std::int32_t used_parts = 0;  ///< Only the first so many get any work; 0: all.
  bool packs = true;            ///< May requests be packed into parts (packing.h)? It takes a device long.

  std::int32_t parts_of(const Geometry& g) const { return used_parts > 0 ? used_parts : g.parts; }
};

}  // namespace flashlatent::schedule
