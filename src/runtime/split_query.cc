#include "runtime/split_query.h"

#include <algorithm>
#include <cstring>

#include "core/query_parts.h"

namespace flashlatent::runtime {

bool may_split_query(const DecodeProblem& problem) {
  return problem.cache.layout == KvLayout::kLatent && query_parts::has_rope(problem.cache.qk_dim);
}

DecodeInputs split_query(RandomCase& random_case, bool as_engines) {
  using query_parts::kRopeDim;
  constexpr int kPad = 16;    // columns
  constexpr int kNope = 128;  // columns before RoPE's in an engine's query, before it is absorbed
  DecodeInputs inputs = random_case.inputs;
  const ConstTensorView& q = random_case.inputs.q;
  const int first = query_parts::first_columns(random_case.problem.cache.qk_dim);
  const auto size = static_cast<std::int64_t>(size_of(q.dtype));
  const int token = q.rank == 4 ? 1 : 0, head = q.rank - 2;
  const std::int64_t requests = q.rank == 4 ? q.shape[0] : 1, tokens = q.shape[token], heads = q.shape[head];
  auto allocate = [&](std::int64_t row) {
    random_case.storage.emplace_back(std::max<std::int64_t>(requests * tokens * heads * row, 1) * size, 0xFF);
    return random_case.storage.back().data();
  };
  auto view_of = [&](std::uint8_t* data, int columns, std::int64_t token_stride, std::int64_t head_stride) {
    ConstTensorView view = q;
    view.data = data;
    view.shape[q.rank - 1] = columns;
    view.strides[head] = head_stride;
    view.strides[token] = token_stride;
    if (q.rank == 4) view.strides[0] = tokens * token_stride;
    return view;
  };
  const int pad = as_engines ? kPad : 0, nope = as_engines ? kNope : 0;
  const std::int64_t row = first + pad, rope_row = nope + kRopeDim;
  std::uint8_t *latents = allocate(row), *ropes = allocate(rope_row) + nope * size;
  inputs.q = as_engines ? view_of(latents, first, row, requests * tokens * row)
                        : view_of(latents, first, heads * row, row);
  inputs.q_rope = view_of(ropes, kRopeDim, heads * rope_row, rope_row);
  for (std::int64_t i = 0; i < requests * tokens * heads; ++i) {
    const std::int64_t request = i / heads / tokens, at_token = i / heads % tokens, at_head = i % heads;
    auto offset = [&](const ConstTensorView& view) {
      return ((q.rank == 4 ? request * view.strides[0] : 0) + at_token * view.strides[token] +
              at_head * view.strides[head]) *
             size;
    };
    const auto* from = static_cast<const std::uint8_t*>(q.data) + offset(q);
    std::memcpy(latents + offset(inputs.q), from, first * size);
    std::memcpy(ropes + offset(inputs.q_rope), from + first * size, kRopeDim * size);
  }
  return inputs;
}

}  // namespace flashlatent::runtime
