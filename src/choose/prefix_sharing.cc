#include "choose/prefix_sharing.h"

#include "core/message.h"
#include "plan/prefix_groups.h"

namespace flashlatent::choose {

std::string reason_against_prefixes(const DecodeKernel& kernel, const DecodeProblem& problem) {
  const auto& [query, cache, sparse, options] = problem;
  if (kernel.declines_prefixes == nullptr) return "this kernel does not take shared prefixes";
  if (options.batch_invariant) return "batch_invariant is set";
  if (sparse.enabled) return "the problem is sparse";
  if (cache.extra.enabled) return "there is an extra cache";
  if (query.ragged) return "queries are ragged";
  if (options.window != 0) return message("window is ", options.window);
  if (options.separate.alibi) return "alibi is set";
  return kernel.declines_prefixes(problem).value_or("");
}

prefix::Shape prefix_shape_of(const Cutter& cutter, const DecodeProblem& problem,
                              const schedule::Workers& workers) {
  if (problem.options.prefix_sharing == PrefixSharing::kOff) return {};
  if (!reason_against_prefixes(cutter.kernel, problem).empty()) return {};
  prefix::Shape shape = cutter.prefix_shape(problem, workers);
  if (problem.options.causal) shape.unseen = problem.query.tokens - 1;  // an upper bound for a rank's shard
  const bool always = problem.options.prefix_sharing == PrefixSharing::kAlways;
  return always || prefix::may_pay(shape) ? shape : prefix::Shape{};
}

}  // namespace flashlatent::choose
