// The oracle: float64, no tricks, one row at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "flashlatent/decode.h"

namespace flashlatent::cpu {

/// One query row's result, and what it takes to judge a kernel's.
struct ReferenceRow {
  std::vector<double> out;  ///< v_dim; 0 for an empty row.
  double lse;               ///< Natural; -inf for an empty row.
  /// The same row by the plainest code in the working precision: fp32 sums, exp(S - max) rounded to the
  /// cache's dtype before it meets V, what a sink leaves by plain_lse, the result rounded to that dtype. With
  /// e4m3 products queries and exp(S - max) are rounded to e4m3 as core/e4m3_latent.h says.
  std::vector<float> plain_out;
  float plain_lse;
  /// What plain_lse's error is expected to be: the RMS of what rounding each fp32 sum of a score's products
  /// loses, 0.4 2^-24 of the sum so far, weighed with the tokens' probabilities. With e4m3 products twice
  /// what Hopper's tensor cores lose, whose sums of them keep 13 bits.
  double lse_rounding;
  /// What plain_out's error is expected to be: the RMS of what rounding P and the result loses,
  /// 0.4 u sqrt(|out|^2 + spread^2), finite elements only. u is half a unit of the last place of 1, spread
  /// sqrt(sum p^2 |v|^2) over the tokens but those of the largest score (their P is 1, which rounding leaves
  /// alone), p normalised, times what a sink leaves. Tokens that indices name several times count as one with
  /// the most that rounding P may lose. With e4m3 products that of spread is 2^-3 and all tokens count, and
  /// sqrt(sum p |v|^2 / v_dim), the size of values in one direction, counts with 2^-4.
  double out_rounding;
  double max_logit;       ///< The largest scaled score; -inf for an empty row, NaN where lse is.
  float plain_max_logit;  ///< The same in fp32, of keys in the working precision.
};

/// Query token `token` and query head `head` of `request`. Tensors are on the CPU, fit the problem and may
/// have any strides.
ReferenceRow reference_row(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token,
                           int head);

/// Of an e4m3 latent cache (and its extra one) the bytes of each token that a query token attends to, in
/// order.
std::vector<const std::uint8_t*> e4m3_tokens_seen(const DecodeProblem& problem, const DecodeInputs& inputs,
                                                  int request, int token);

/// A query row as e4m3 products have it: e4m3 queries without their scale, others rounded to e4m3.
std::vector<float> e4m3_query_row(const DecodeProblem& problem, const DecodeInputs& inputs, int request,
                                  int token, int head);

/// Query tokens of a request: s_q, or with ragged queries what cu_seqlens_q says.
int query_tokens(const DecodeProblem& problem, const DecodeInputs& inputs, int request);

}  // namespace flashlatent::cpu
