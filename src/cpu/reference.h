// The oracle: float64, no tricks, one row at a time.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "flashlatent/decode.h"

namespace flashlatent::cpu {

/// The size that a sum of independent errors is expected to have, and of how many it is: the norm of few may
/// well be some times that.
class IndependentErrors {
 public:
  void add(double error) {
    squares_ += error * error;
    fourths_ += error * error * (error * error);
  }
  /// Their root mean square, summed up.
  double size() const { return std::sqrt(squares_); }
  /// As many of one size would vary as much.
  double count() const { return fourths_ > 0 ? squares_ * squares_ / fourths_ : 1; }

 private:
  double squares_ = 0, fourths_ = 0;
};

/// One query row's result, and what it takes to judge a kernel's.
struct ReferenceRow {
  std::vector<double> out;                                ///< v_dim; 0 for an empty row.
  double lse = -std::numeric_limits<double>::infinity();  ///< Natural; -inf for an empty row.
  /// The same row by the plainest code in the working precision: fp32 sums, exp(S - max) rounded to the
  /// cache's dtype before it meets V, the result rounded to that dtype.
  std::vector<float> plain_out;
  float plain_lse = -std::numeric_limits<float>::infinity();
  /// sqrt(sum p^2 |v|^2) over the tokens, p normalised, times what the sink leaves: the size of what rounding
  /// P perturbs.
  double value_spread = 0;
  /// The same without the largest, which plain code does not round: p |v| each.
  IndependentErrors rounded_values;
  double most_of_rounded_values = 0;  ///< sum p |v| of them
  /// What scores' rounding changes of lse. Of a score that is 2^-24 of each eighth sum of its products so
  /// far, all in one direction, as tensor cores truncate, and of each product what rounding the cached
  /// element to the working precision changes.
  double lse_rounding = 0;
  /// What it changes of out by way of the tokens' weights, their values taken to be independent, and by way
  /// of the sink.
  IndependentErrors weight_rounding;
  double sink_rounding = 0;
};

/// Query token `token` and query head `head` of `request`. Tensors are on the CPU, fit the problem and may
/// have any strides.
ReferenceRow reference_row(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token,
                           int head);

/// Query tokens of a request: s_q, or with ragged queries what cu_seqlens_q says.
int query_tokens(const DecodeProblem& problem, const DecodeInputs& inputs, int request);

}  // namespace flashlatent::cpu
