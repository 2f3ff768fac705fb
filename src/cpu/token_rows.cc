#include "cpu/token_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/element.h"
#include "core/message.h"
#include "cpu/cache_arguments.h"

namespace flashlatent::cpu {

namespace {

/// The sum over columns in the order of the device's threads: each thread has a word.
template <class Term>
float sum_by_words(int columns, Term term) {
  constexpr int kLanes = 32;
  float sum = 0;
  for (int first = 0; first < columns; first += kLanes * edges::kWordColumns) {
    std::array<float, kLanes> sums{};
    for (int i = first; i < std::min(columns, first + kLanes * edges::kWordColumns); ++i) {
      float& lane = sums[(i - first) / edges::kWordColumns];
      lane = edges::sum(lane, term(i));
    }
    for (int apart = kLanes / 2; apart > 0; apart /= 2) {
      std::array<float, kLanes> next{};
      for (int lane = 0; lane < kLanes; ++lane) next[lane] = edges::sum(sums[lane], sums[lane ^ apart]);
      sums = next;
    }
    sum = edges::sum(sum, sums[0]);
  }
  return sum;
}

void normalise(float* x, const edges::TokenSteps& steps) {
  const int columns = steps.norm_columns;
  if (steps.bias != nullptr) {
    const float mean = edges::mean_of(sum_by_words(columns, [x](int i) { return x[i]; }), columns);
    for (int i = 0; i < columns; ++i) x[i] = edges::sum(x[i], -mean);
  }
  const float squares = sum_by_words(columns, [x](int i) { return edges::product(x[i], x[i]); });
  const float factor = edges::norm_factor(squares, columns, steps.epsilon);
  for (int i = 0; i < columns; ++i) {
    const float weight = steps.weight == nullptr ? 1.0F : number(steps.weight, steps.weight_dtype, i);
    x[i] = edges::normed(x[i], factor, weight);
    if (steps.bias != nullptr) x[i] = edges::sum(x[i], number(steps.bias, steps.bias_dtype, i));
  }
}

void round_all(float* x, std::int64_t count, Dtype dtype) {
  for (std::int64_t i = 0; i < count; ++i) x[i] = to_float(from_float(x[i], dtype), dtype);
}

void read_part(const ConstTensorView& view, std::int64_t row, float* x) {
  for (std::int64_t c = 0; c < view.shape[1]; ++c)
    x[c] = number(view.data, view.dtype, row * view.strides[0] + c);
}

}  // namespace

float number(const void* data, Dtype dtype, std::int64_t at) {
  if (dtype == Dtype::kF32) return static_cast<const float*>(data)[at];
  return to_float(static_cast<const std::uint16_t*>(data)[at], dtype);
}

void rotate_columns(float* row, int first, const edges::Rotary& rotary, std::int64_t position) {
  TokenRow before;
  float* x = row + first;
  std::copy_n(x, rotary.columns, before.begin());
  for (int column = 0; column < rotary.columns; ++column) {
    x[column] = rotary.rotated(column, before[column], before[rotary.partner_of(column)],
                               rotary.angle(position, rotary.pair_of(column)));
  }
}

TokenRows::TokenRows(const ConstTensorView& first, const ConstTensorView& rest,
                     const edges::TokenSteps& steps)
    : first_(first),
      rest_(rest),
      first_columns_(first.shape[1]),
      rest_columns_(rest.present() ? rest.shape[1] : 0),
      steps_(steps),
      rounded_to_(first.dtype == Dtype::kF32 ? Dtype::kBF16 : first.dtype) {}

bool TokenRows::stores(std::int64_t i) const {
  return !steps_.has_positions() || steps_.stores(steps_.rotary.position(0, i));
}

Status TokenRows::validate_positions(const ConstTensorView& slot_mapping) const {
  if (!steps_.rotates()) return {};
  for (std::int64_t i = 0; i < slot_mapping.shape[0]; ++i) {
    const std::int64_t position = steps_.rotary.position(0, i);
    if (integer(slot_mapping, i) < 0 || !steps_.stores(position)) continue;
    if (steps_.rotary.holds(steps_.rotated_by(position))) continue;
    return invalid_argument("positions has ", position, " for token ", i, "; table has ", steps_.rotary.rows,
                            " positions");
  }
  return {};
}

void TokenRows::read(std::int64_t i, TokenRow& row) const {
  read_part(first_, i, row.data());
  if (rest_columns_ > 0) read_part(rest_, i, row.data() + first_columns_);
  if (steps_.epsilon > 0) normalise(row.data(), steps_);
  if (steps_.rounds_normed) round_all(row.data(), columns(), rounded_to_);
  if (steps_.rotates()) {
    rotate_columns(row.data(), steps_.first_rotated, steps_.rotary,
                   steps_.rotated_by(steps_.rotary.position(0, i)));
  }
  for (std::int64_t c = 0; c < columns(); ++c) {
    if (std::isnan(row[c])) row[c] = std::numeric_limits<float>::quiet_NaN();  // one for all backends
  }
}

void TokenRows::round_scaled(TokenRow& row, std::int64_t count) const {
  if (steps_.rounds_scaled) round_all(row.data(), count, rounded_to_);
}

}  // namespace flashlatent::cpu
