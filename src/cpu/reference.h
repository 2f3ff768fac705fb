// The oracle: float64, the plainest code, one query token at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flashlatent/decode.h"

namespace flashlatent::cpu {

/// One query row's result, and the numbers by which a kernel's result is judged.
struct ReferenceRow {
  std::vector<double> out;  ///< v_dim; 0 for an empty row. With out_rotate it is turned back.
  double lse;               ///< Natural; -inf for an empty row.
  /// The row by the plainest code in the working precision: sums in fp32; exp(S - max) rounded to the cache's
  /// dtype before it meets V; the sink by plain_lse; the result rounded to that dtype. With e4m3 products
  /// queries and exp(S - max) are rounded to e4m3 (core/formats/e4m3_latent.h).
  std::vector<float> plain_out;
  float plain_lse;
  /// The error that plain_lse may be expected to have: what reading cached elements in the working precision
  /// changes, and three times the RMS of what rounding each fp32 sum of a score's products loses (0.4 * 2^-24
  /// of the sum so far), weighed with the tokens' probabilities. With e4m3 products it is twice the loss of
  /// Hopper's tensor cores, whose sums keep 13 bits.
  double lse_rounding;
  /// The expected error of plain_out: the RMS of what rounding P and the result loses, 0.4 u sqrt(|out|^2 +
  /// spread^2), over finite elements; and what reading cached elements in the working precision changes.
  /// - u: half a unit in the last place of 1.
  /// - spread: sqrt(sum p^2 |v|^2) times what a sink leaves; p is normalised. Tokens with the largest score
  ///   do not count: their P is 1, which rounding leaves alone. A token that indices name several times
  ///   counts as one, with the most that rounding P may lose.
  /// - With out_rotate: the plain code turns its rounded row back in fp32 and rounds again.
  /// - With e4m3 products: u of spread is 2^-3, all tokens count, and sqrt(sum p |v|^2 / v_dim), the size of
  ///   values in one direction, counts with 2^-4.
  double out_rounding;
  double max_logit;           ///< The largest scaled score; -inf for an empty row, NaN where lse is.
  float plain_max_logit;      ///< max_logit in fp32, from keys in the working precision.
  double max_logit_rounding;  ///< As lse_rounding.
};

/// The result of query token `token` and query head `head` of `request`. Tensors are on the CPU, fit the
/// problem and may have any strides. A query with edges is prepared in fp32 and rounded, as it is defined.
ReferenceRow reference_row(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token,
                           int head);

/// The same for several query heads of one KV head: each token is read once.
std::vector<ReferenceRow> reference_rows(const DecodeProblem& problem, const DecodeInputs& inputs,
                                         int request, int token, std::span<const int> heads);

/// The bytes of each token that a query token attends to in an e4m3 latent cache (and its extra cache), in
/// order.
std::vector<const std::uint8_t*> e4m3_tokens_seen(const DecodeProblem& problem, const DecodeInputs& inputs,
                                                  int request, int token);

/// A query row as e4m3 products use it: e4m3 queries without their scale, others rounded to e4m3.
std::vector<float> e4m3_query_row(const DecodeProblem& problem, const DecodeInputs& inputs, int request,
                                  int token, int head);

}  // namespace flashlatent::cpu
