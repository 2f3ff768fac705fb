// The float64 oracle of index_topk(): obvious, a token at a time.
#pragma once

#include <vector>

#include "core/index_call.h"

namespace flashlatent::cpu {

struct IndexScore {
  bool exists = false;  ///< The query token sees a token here.
  double score = 0;     ///< scale * sum of w * relu(q . k); -inf for NaN.
  /// scale * sum of |w| * relu(q . k), and scale * sum of |w| * sum of |q_i k_i|: what errors are measured
  /// by.
  double magnitude = 0, products = 0;
};

/// The scores of query token `row` at all its places, on host memory.
std::vector<IndexScore> index_scores(const IndexCall& call, std::int64_t row);

}  // namespace flashlatent::cpu
