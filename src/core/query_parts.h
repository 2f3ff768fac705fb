// The query's two parts as views: q and q_rope, or columns of q.
#pragma once

#include "core/query_columns.h"
#include "flashlatent/decode.h"

namespace flashlatent::query_parts {

/// Columns that q has.
inline int columns_of_q(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const int qk_dim = problem.cache.qk_dim;
  return inputs.q_rope.present() ? first_columns(qk_dim) : qk_dim;
}

/// Columns `begin` to `end` of a tensor.
inline ConstTensorView columns(ConstTensorView view, int begin, int end) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  if (view.data != nullptr) view.data = static_cast<const std::uint8_t*>(view.data) + begin * size;
  view.shape[view.rank - 1] = end - begin;
  return view;
}

/// The first part.
inline ConstTensorView first_of(const DecodeProblem& problem, const DecodeInputs& inputs) {
  return columns(inputs.q, 0, first_columns(problem.cache.qk_dim));
}

/// The RoPE part, absent if there is none.
inline ConstTensorView rope_of(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const int qk_dim = problem.cache.qk_dim;
  if (inputs.q_rope.present()) return inputs.q_rope;
  if (!has_rope(qk_dim) || !inputs.q.present()) return {};
  return columns(inputs.q, first_columns(qk_dim), qk_dim);
}

/// Columns of the query that has these parts. q_rope is present, and q has a rank.
inline int dim_of(const ConstTensorView& q, const ConstTensorView& q_rope) {
  return static_cast<int>(q.shape[q.rank - 1] + q_rope.shape[q_rope.rank - 1]);
}

/// Does q_rope, which is present, fit q? The message names both.
Status expect_fit(const ConstTensorView& q, const ConstTensorView& q_rope);

}  // namespace flashlatent::query_parts
