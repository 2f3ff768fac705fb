#include "plan/held_tokens.h"

#include "flashlatent/decode.h"

namespace flashlatent::schedule {

namespace {

/// No tile has more rows.
constexpr std::size_t kSpansInFront = 256;

std::size_t spans_of(const HeldShape& shape) {
  return std::size_t(shape.requests) * shape.query_tokens;
}

}  // namespace

HeldShape held_shape(const DecodeProblem& problem) {
  const ContextShard& shard = problem.options.shard;
  return {.shard = TokenShard(shard.rank, shard.world, shard.run),
          .requests = problem.query.batch,
          .query_tokens = problem.query.tokens,
          .window = problem.options.window};
}

std::size_t held_bytes(const HeldShape& shape) {
  if (shape.shard.is_all()) return 0;
  const std::size_t bytes =
      (kSpansInFront + spans_of(shape)) * sizeof(TokenSpan) + shape.requests * sizeof(std::int32_t);
  return (bytes + 15) / 16 * 16;
}

HeldTokens held_tokens(const HeldShape& shape, void* memory) {
  if (shape.shard.is_all()) return {};
  auto* spans = static_cast<TokenSpan*>(memory) + kSpansInFront;
  return {reinterpret_cast<const std::int32_t*>(spans + spans_of(shape)), spans, shape.query_tokens};
}

void hold_tokens(const HeldShape& shape, const std::int32_t* contexts, std::int64_t stride, void* memory) {
  const HeldTokens held = held_tokens(shape, memory);
  auto* spans = const_cast<TokenSpan*>(held.spans);
  auto* lengths = const_cast<std::int32_t*>(held.lengths);
  for (std::int32_t r = 0; r < shape.requests; ++r) {
    const std::int32_t context = contexts[r * stride];
    lengths[r] = shape.shard.held(context);
    for (std::int32_t later = 0; later < shape.query_tokens; ++later) {
      *spans++ = held_span(shape, context, later);
    }
  }
}

}  // namespace flashlatent::schedule
