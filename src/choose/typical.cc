#include "choose/typical.h"

#include <algorithm>
#include <cstdint>

namespace flashlatent {

std::optional<DecodeProblem> typical_problem(const DecodeProblem& problem) {
  const DecodeProblem::Options& options = problem.options;
  if (options.typical_tokens == 0 || options.batch_invariant ||
      options.prefix_sharing != PrefixSharing::kOff) {
    return std::nullopt;
  }
  DecodeProblem typical = problem;
  int& reach = problem.sparse.enabled ? typical.sparse.topk : typical.cache.max_pages;
  const std::int64_t unit =
      problem.sparse.enabled ? 1 : std::int64_t{problem.cache.page_size} * options.shard.world;
  const std::int64_t needed = (options.typical_tokens + unit - 1) / unit;
  if (needed >= reach) return std::nullopt;
  reach = static_cast<int>(needed);
  return typical;
}

schedule::Geometry with_reach(const schedule::Geometry& chosen, const schedule::Geometry& at_reach) {
  if (chosen.block_tokens != at_reach.block_tokens) return at_reach;
  schedule::Geometry g = chosen;
  g.max_tokens = at_reach.max_tokens;
  std::copy(std::begin(at_reach.list), std::end(at_reach.list), std::begin(g.list));
  return g;
}

}  // namespace flashlatent
