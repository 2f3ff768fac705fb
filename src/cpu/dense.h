// What the fast kernel's choice and its launch have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/cpu_backend.h"

namespace flashlatent::cpu {

/// The schedule's requests: the query tokens, where each has tokens of its own.
inline int items_of(const DecodeProblem& problem) {
  return problem.token_items() ? problem.query.batch * problem.query.tokens : problem.query.batch;
}

/// The most tokens of a request.
inline int max_tokens(const DecodeProblem& problem) {
  const std::int64_t reach = problem.sparse.enabled
                                 ? problem.sparse.topk
                                 : std::int64_t{problem.cache.max_pages} * problem.cache.page_size;
  return static_cast<int>(std::min<std::int64_t>(reach, std::numeric_limits<int>::max()));
}

/// Decodes by the plan's parts. kInvalidArgument: the plan is of another problem or executor.
Status launch_dense(const DecodeCall& call);

}  // namespace flashlatent::cpu
