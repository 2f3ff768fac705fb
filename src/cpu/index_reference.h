// The float64 oracle of index_topk(): obvious, a token at a time.
#pragma once

#include <vector>

#include "core/index_call.h"

namespace flashlatent::cpu {

struct IndexScore {
  bool exists = false;   ///< The query token sees a token here.
  double score = 0;      ///< scale * sum of w * relu(q . k); -inf for NaN.
  double magnitude = 0;  ///< scale * sum of |w| * relu(q . k).
  double largest = 0;    ///< scale * root of the sum, over heads, of (w * the largest |q_i k_i|)^2.
};

/// The scores of query token `row` at all its places, on host memory.
std::vector<IndexScore> index_scores(const IndexCall& call, std::int64_t row);

}  // namespace flashlatent::cpu
