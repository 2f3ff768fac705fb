// Which cached tokens a query token attends to, in the plainest code.
#pragma once

#include <cstdint>
#include <vector>

#include "flashlatent/decode.h"

namespace flashlatent::cpu {

/// The place of a cached token.
struct Place {
  std::int64_t page, offset;
  bool extra = false;  // in the extra cache?
};

/// A token that a query token attends to. ALiBi needs its distance from the request's last token.
struct Seen {
  Place place;
  std::int64_t distance;  // not positive
};

/// The number of a request's query tokens: s_q, or with ragged queries the number that cu_seqlens_q gives.
int query_tokens(const DecodeProblem& problem, const DecodeInputs& inputs, int request);

/// All tokens that a query token attends to, in both caches.
std::vector<Seen> seen_by(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token);

/// How often each token is among them. Indices may name a token several times, and it is rounded in the same
/// way each time.
std::vector<int> repeats_of(const std::vector<Seen>& seen, bool by_indices);

}  // namespace flashlatent::cpu
