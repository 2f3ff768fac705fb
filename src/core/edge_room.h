// Where a decode call whose kernel has no edges of its own keeps the prepared query and the output that is
// not finished yet: behind the kernel's workspace.
#pragma once

#include <cstddef>

#include "flashlatent/problem.h"

namespace flashlatent {

struct EdgeRoom {
  std::size_t query = 0, output = 0;  // bytes, multiples of 256

  std::size_t bytes() const { return query + output; }
};

/// Ragged queries have at most batch * s_q tokens.
EdgeRoom edge_room(const DecodeProblem& problem);

}  // namespace flashlatent
