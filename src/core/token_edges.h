// What is done to new tokens before they are stored (TokenEdges in flashlatent/edges.h), for host and device.
#pragma once

#include "core/rotation.h"
#include "flashlatent/tensor.h"

namespace flashlatent::edges {

/// Columns of a lane: a row's sums are those of words of 8 columns, of the 32 lanes of a warp, of warps.
inline constexpr int kWordColumns = 8;

struct TokenSteps {
  Rotary rotary;  // without a table nothing is rotated
  int first_rotated, norm_columns;
  float epsilon;  // 0: no norm
  int ratio;
  const void *weight, *bias;  // null: none
  Dtype weight_dtype, bias_dtype;
  bool rounds_normed, rounds_scaled;

  FLASHLATENT_HOST_DEVICE bool rotates() const { return rotary.table != nullptr; }
  FLASHLATENT_HOST_DEVICE bool has_positions() const { return rotary.positions != nullptr; }
  /// Is a token of this position stored?
  FLASHLATENT_HOST_DEVICE bool stores(std::int64_t position) const {
    if (ratio == 1) return true;
    if (position >> 31 != 0) return position >= 0 && (position + 1) % ratio == 0;
    return (static_cast<std::uint32_t>(position) + 1) % static_cast<std::uint32_t>(ratio) == 0;
  }
  /// By which position it is rotated.
  FLASHLATENT_HOST_DEVICE std::int64_t rotated_by(std::int64_t position) const {
    return position + 1 - ratio;
  }
};

/// An element, or with a bias its difference from the mean, after the norm.
FLASHLATENT_HOST_DEVICE float normed(float x, float factor, float weight) {
  return product(product(x, factor), weight);
}
FLASHLATENT_HOST_DEVICE float mean_of(float sum, int columns) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(sum, static_cast<float>(columns));
#else
  return sum / static_cast<float>(columns);
#endif
}

/// An index query's weight times the scale of e4m3 (or 1), then 128^-1/2 and heads^-1/2.
FLASHLATENT_HOST_DEVICE float scaled_weight(float weight, float scale, float dim_factor, float head_factor) {
  return product(product(product(weight, scale), dim_factor), head_factor);
}

}  // namespace flashlatent::edges
