// Rows of queries or outputs, (tokens, heads, d) or (batch, s_q, heads, d), as the edges of a layer walk
// them.
#pragma once

#include "core/rotation.h"
#include "flashlatent/edges.h"

namespace flashlatent::edges {

struct Rows {
  const void* data = nullptr;
  std::int64_t tokens = 0;  // of a request; of all where there is one request
  std::int64_t requests = 0;
  std::int64_t heads = 0;
  int dim = 0;
  std::int64_t strides[3] = {};  // of a request, a token, a head

  explicit Rows(const ConstTensorView& view) {
    if (!view.present()) return;
    const int first = view.rank - 3;
    data = view.data;
    requests = first > 0 ? view.shape[0] : 1;
    tokens = view.shape[first];
    heads = view.shape[first + 1];
    dim = static_cast<int>(view.shape[first + 2]);
    strides[0] = first > 0 ? view.strides[0] : 0;
    strides[1] = view.strides[first];
    strides[2] = view.strides[first + 1];
  }

  std::int64_t count() const { return requests * tokens * heads; }
};

/// The request, token and head of a row, from the row's number.
struct Place {
  std::int64_t request, token, head;

  Place(const Rows& rows, std::int64_t row)
      : request(row / rows.heads / rows.tokens),
        token(row / rows.heads % rows.tokens),
        head(row % rows.heads) {}

  std::int64_t offset(const Rows& rows) const {
    return request * rows.strides[0] + token * rows.strides[1] + head * rows.strides[2];
  }
};

inline Rotary rotary_of(const Rotation& rotation, bool back) {
  Rotary rotary = {};
  if (!rotation.present()) return rotary;
  const ConstTensorView &positions = rotation.positions, &table = rotation.table;
  rotary.positions = positions.data;
  rotary.table = table.data;
  rotary.rows = table.shape[0];
  rotary.stride = table.strides[0];
  rotary.position_strides[0] = positions.rank > 1 ? positions.strides[0] : 0;
  rotary.position_strides[1] = positions.strides[positions.rank - 1];
  rotary.columns = static_cast<int>(table.shape[1]);
  rotary.wide_positions = positions.dtype == Dtype::kI64;
  rotary.bf16_table = table.dtype == Dtype::kBF16;
  rotary.halves = rotation.pairs == RotaryPairs::kHalves;
  rotary.interleaved = rotation.layout == RotaryTable::kInterleaved;
  rotary.back = back;
  return rotary;
}

}  // namespace flashlatent::edges
