// Of contexts that ranks share: which of the tokens that are here query tokens attend to. Worked out once a
// call, before plans and kernels, which so know of no ranks: to them a request is as long as what is here.
//
// How much of a context a query token sees goes by how many query tokens come after it (`later`, 0 without a
// causal mask), which is what spans are found by.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/token_lists.h"

namespace flashlatent::schedule {

struct HeldTokens {
  const std::int32_t* lengths = nullptr;  ///< Of each request; null: contexts are whole.
  const TokenSpan* spans = nullptr;       ///< [request * spans_stride + later]
  std::int32_t spans_stride = 0;          ///< Query tokens of a request.
};

/// What they follow from, beside contexts' lengths.
struct HeldShape {
  TokenShard shard;
  std::int32_t requests = 0, query_tokens = 1, window = 0;
};

HeldShape held_shape(const DecodeProblem& problem);

/// Of the query token that `later` ones come after, in a context of so many tokens.
FLASHLATENT_HOST_DEVICE TokenSpan held_span(const HeldShape& shape, std::int32_t length, std::int32_t later) {
  const std::int32_t seen = length > later ? length - later : 0;
  return {shape.window > 0 ? shape.shard.held(seen - shape.window) : 0, shape.shard.held(seen)};
}

/// Memory for them, a multiple of 16; 0 if contexts are whole.
std::size_t held_bytes(const HeldShape& shape);

/// In memory of held_bytes(), which hold_tokens() fills.
HeldTokens held_tokens(const HeldShape& shape, void* memory);

/// On the host. `stride`: from a context's length to the next one.
void hold_tokens(const HeldShape& shape, const std::int32_t* contexts, std::int64_t stride, void* memory);

}  // namespace flashlatent::schedule
