#include "core/edge_room.h"

namespace flashlatent {

EdgeRoom edge_room(const DecodeProblem& problem) {
  const auto room = [&problem](bool wanted, int dim) -> std::size_t {
    if (!wanted) return 0;
    const DecodeProblem::Query& query = problem.query;
    const std::size_t rows = std::size_t{1} * query.batch * query.tokens * query.heads;
    return (rows * dim * size_of(problem.cache.dtype) + 255) / 256 * 256;
  };
  return {room(problem.options.q_edge, problem.cache.qk_dim),
          room(problem.options.out_edge, problem.cache.v_dim)};
}

}  // namespace flashlatent
