// TokenEdges as code walks them, on the host.
#pragma once

#include <cmath>

#include "core/edge_rows.h"
#include "core/formats/format.h"
#include "core/index_keys.h"
#include "core/token_edges.h"

namespace flashlatent::edges {

/// Which of a token's roundings are done: after the norm, and of elements that are quantised.
struct Roundings {
  bool normed, scaled;
};

/// Index keys, and latents of a format that is no record of scaled elements alone.
inline Roundings roundings_of(TokenRounding rounding, Dtype dtype) {
  const bool engine = rounding == TokenRounding::kEngine;
  return {engine && dtype != Dtype::kF32, engine};
}
inline Roundings roundings_of(TokenRounding rounding, Dtype dtype, const LatentFormat& format) {
  const bool all_scaled = format.is_record() && format.rope_dim == 0;
  if (all_scaled) return {rounding == TokenRounding::kEngine, false};
  return roundings_of(rounding, dtype);
}

/// The steps for rows of `dim` columns; the norm covers the first `norm_columns`.
inline TokenSteps steps_of(const TokenEdges& edges, std::int64_t dim, std::int64_t norm_columns,
                           Roundings roundings) {
  const Rotary rotary = rotary_of(edges.rotate, /*back=*/false);
  const bool last = edges.columns == RotaryColumns::kLast;
  return {.rotary = rotary,
          .first_rotated = last ? static_cast<int>(dim) - rotary.columns : 0,
          .norm_columns = static_cast<int>(norm_columns),
          .epsilon = edges.norm.epsilon,
          .ratio = static_cast<int>(edges.ratio),
          .weight = edges.norm.weight.data,
          .bias = edges.norm.bias.data,
          .weight_dtype = edges.norm.weight.dtype,
          .bias_dtype = edges.norm.bias.dtype,
          .rounds_normed = roundings.normed,
          .rounds_scaled = roundings.scaled};
}

/// A number for each head, (tokens, heads) or (batch, s_q, heads).
struct HeadNumbers {
  std::int64_t strides[3] = {};  // of a request, a token, a head

  explicit HeadNumbers(const ConstTensorView& view) {
    const int first = view.rank - 2;
    strides[0] = first > 0 ? view.strides[0] : 0;
    strides[1] = view.strides[first];
    strides[2] = view.strides[first + 1];
  }
  std::int64_t offset(const Place& place) const {
    return place.request * strides[0] + place.token * strides[1] + place.head * strides[2];
  }
};

/// What an index query's weight is multiplied by.
struct IndexFactors {
  float dim, heads;

  explicit IndexFactors(std::int64_t head_count)
      : dim(static_cast<float>(1 / std::sqrt(double{index_keys::kDim}))),
        heads(static_cast<float>(1 / std::sqrt(static_cast<double>(head_count)))) {}
};

/// Is a row of new tokens made in fp32, as by these edges, before it is stored?
inline bool in_fp32(const TokenEdges& edges, Dtype dtype) {
  return edges.present() || dtype == Dtype::kF32;
}

}  // namespace flashlatent::edges
