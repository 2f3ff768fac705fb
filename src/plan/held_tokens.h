// Where ranks share contexts: which of the tokens in this rank's cache each query token attends to. This is
// computed once a call, before the plan and the kernel, which know of no ranks: they take the held tokens for
// the whole context.
//
// What a query token sees depends on the number of query tokens after it (`later`; 0 without a causal mask),
// so spans are indexed by `later`. Kernels also ask for rows of a tile that belong to no query token. These
// lie behind the last one, so `later` is negative: memory for a tile's rows lies in front of the spans, and
// what is read there is not used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/token_lists.h"

namespace flashlatent::schedule {

struct HeldTokens {
  const std::int32_t* lengths = nullptr;  ///< One a request: its held tokens; null: contexts are whole.
  const TokenSpan* spans = nullptr;       ///< [request * spans_stride + later]
  std::int32_t spans_stride = 0;          ///< Spans a request: its query tokens.
};

/// The shapes that held tokens depend on, beside the contexts' lengths.
struct HeldShape {
  TokenShard shard;
  std::int32_t requests = 0, query_tokens = 1, window = 0;
};

HeldShape held_shape(const DecodeProblem& problem);

/// The span of a query token that has `later` query tokens after it, in a context of `length` tokens.
FLASHLATENT_HOST_DEVICE TokenSpan held_span(const HeldShape& shape, std::int32_t length, std::int32_t later) {
  const std::int32_t end = Visibility::end(length, later);
  return {shape.window > 0 ? shape.shard.held(end - shape.window) : 0, shape.shard.held(end)};
}

/// Bytes for the lengths and spans, a multiple of 16; 0 if contexts are whole.
std::size_t held_bytes(const HeldShape& shape);

/// Pointers into `memory` of held_bytes(), which hold_tokens() fills.
HeldTokens held_tokens(const HeldShape& shape, void* memory);

/// Fills `memory` on the host. `stride`: elements from one context's length to the next.
void hold_tokens(const HeldShape& shape, const std::int32_t* contexts, std::int64_t stride, void* memory);

}  // namespace flashlatent::schedule
