// Judges a result of index_topk() query token by query token against the float64 oracle.
#pragma once

#include <cstdint>
#include <string>

#include "flashlatent/index_topk.h"

namespace flashlatent::runtime {

struct IndexComparison {
  std::int64_t rows = 0;  ///< Query tokens.
  std::int64_t wrong_rows = 0;
  /// Largest |score - reference| / tolerance of a score that was given.
  double worst_ratio = 0;
  std::string worst = {};  ///< What is wrong with the first wrong row; empty if none is.

  bool ok() const { return wrong_rows == 0; }
};

/// Compares `results`, on the CPU, with the oracle, or with the scores `scores_ref` (fp32, as all_scores)
/// where present.
///
/// A score passes within its tolerance: 1e-3 scale sum |w| relu(q . k), as e4m3 tensor cores keep 13 bits of
/// a sum, and 2e-5 scale sum |w| sum |q_i k_i| for sums near 0. The chosen pass if no chosen token is below
/// one that is not chosen by more than both tolerances; where all_scores is given they must also be exactly
/// the first of the largest of all_scores. Numbers, order and what follows the chosen must be right as they
/// are.
IndexComparison compare_index(const IndexTopkInputs& inputs, const IndexTopkOptions& options,
                              const IndexTopkOutputs& results, const ConstTensorView& scores_ref = {});

/// One line: what passed, or the first wrong row.
std::string to_string(const IndexComparison& comparison);

}  // namespace flashlatent::runtime
