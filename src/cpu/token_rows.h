// Rows of new tokens or index keys, normalised and rotated in fp32.
#pragma once

#include <array>
#include <cstdint>

#include "core/token_steps.h"
#include "flashlatent/status.h"

namespace flashlatent::cpu {

using TokenRow = std::array<float, edges::kMostColumns>;

/// Tokens whose columns are those of `first`, then those of `rest`, which may be absent.
class TokenRows {
 public:
  TokenRows(const ConstTensorView& first, const ConstTensorView& rest, const edges::TokenSteps& steps);

  std::int64_t columns() const { return first_columns_ + rest_columns_; }
  /// Is token i stored, if it has a slot?
  bool stores(std::int64_t i) const;
  /// Does the table have the positions of all tokens that are stored?
  Status validate_positions(const ConstTensorView& slot_mapping) const;
  /// Token i, without the rounding of elements that are quantised.
  void read(std::int64_t i, TokenRow& row) const;
  /// Rounds the elements [0, count), which are quantised, if they are to be.
  void round_scaled(TokenRow& row, std::int64_t count) const;

 private:
  const ConstTensorView first_, rest_;
  const std::int64_t first_columns_, rest_columns_;
  const edges::TokenSteps steps_;
  const Dtype rounded_to_;
};

/// Rotates a row's columns from `first` on.
void rotate_columns(float* row, int first, const edges::Rotary& rotary, std::int64_t position);

/// A row of a query as prepare_queries() makes it, before it is rounded. Without positions the rotation turns
/// nothing.
void prepare_row(float* row, int dim, float norm, const edges::Rotary& rotary, std::int64_t position);

/// A number of a tensor of fp32, bf16 or fp16.
float number(const void* data, Dtype dtype, std::int64_t at);

}  // namespace flashlatent::cpu
