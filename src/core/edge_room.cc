#include "core/edge_room.h"

namespace flashlatent {

EdgeRoom edge_room(const DecodeProblem& problem) {
  const auto& [query, cache, sparse, options] = problem;
  const auto room = [&](bool wanted, int dim) -> std::size_t {
    if (!wanted) return 0;
    const std::size_t rows = std::size_t{1} * query.batch * query.tokens * query.heads;
    return (rows * dim * size_of(cache.dtype) + 255) / 256 * 256;
  };
  return {room(options.q_edge, cache.qk_dim), room(options.out_edge, cache.v_dim)};
}

}  // namespace flashlatent
