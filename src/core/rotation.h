// The arithmetic of a layer's edges (flashlatent/edges.h), for host and device. Each operation is rounded by
// itself, so that all backends get the same bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/e4m3.h"

namespace flashlatent::edges {

FLASHLATENT_HOST_DEVICE float product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
FLASHLATENT_HOST_DEVICE float sum(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

/// What a row is multiplied by: 1 / sqrt(squares / elements + epsilon).
FLASHLATENT_HOST_DEVICE float norm_factor(float squares, int elements, float epsilon) {
#ifdef __CUDA_ARCH__
  return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(squares, static_cast<float>(elements)), epsilon)));
#else
  return 1.0F / std::sqrt(squares / static_cast<float>(elements) + epsilon);
#endif
}

/// The same from the mean of squares: 1 / sqrt(mean + epsilon). Where the elements are a power of two, a
/// product has the quotient's bits.
FLASHLATENT_HOST_DEVICE float norm_factor_of_mean(float mean, float epsilon) {
#ifdef __CUDA_ARCH__
  return __frcp_rn(__fsqrt_rn(__fadd_rn(mean, epsilon)));
#else
  return 1.0F / std::sqrt(mean + epsilon);
#endif
}

struct Angle {
  float cos, sin;
};

/// A rotation of the last `columns` of a row of `dim`.
struct Rotary {
  const void* positions;  // null: none
  const void* table;
  std::int64_t rows;                 // of the table
  std::int64_t stride;               // in elements
  std::int64_t position_strides[2];  // of a request and of a token
  int columns;
  bool wide_positions, bf16_table;
  bool halves;       // pairs are i and i + columns / 2
  bool interleaved;  // each angle's cosine and sine are neighbours
  bool back;         // by the negative angles

  FLASHLATENT_HOST_DEVICE std::int64_t position(std::int64_t request, std::int64_t token) const {
    const std::int64_t at = request * position_strides[0] + token * position_strides[1];
    return wide_positions ? static_cast<const std::int64_t*>(positions)[at]
                          : static_cast<const std::int32_t*>(positions)[at];
  }
  FLASHLATENT_HOST_DEVICE bool holds(std::int64_t position) const { return position >= 0 && position < rows; }

  FLASHLATENT_HOST_DEVICE float entry(std::int64_t position, int column) const {
    const std::int64_t at = position * stride + column;
    if (!bf16_table) return static_cast<const float*>(table)[at];
    return e4m3::float_of(std::uint32_t{static_cast<const std::uint16_t*>(table)[at]} << 16);
  }
  /// The angle of pair `pair`; NaN where the table has no such position.
  FLASHLATENT_HOST_DEVICE Angle angle(std::int64_t position, int pair) const {
    if (!holds(position)) return {e4m3::float_of(0x7FC00000U), e4m3::float_of(0x7FC00000U)};
    const float cos = entry(position, interleaved ? 2 * pair : pair);
    const float sin = entry(position, interleaved ? 2 * pair + 1 : columns / 2 + pair);
    return {cos, back ? -sin : sin};
  }
  /// Which pair a column of the rotated ones is of, and which column is its partner.
  FLASHLATENT_HOST_DEVICE int pair_of(int column) const {
    return halves ? column % (columns / 2) : column / 2;
  }
  FLASHLATENT_HOST_DEVICE int partner_of(int column) const {
    if (!halves) return column ^ 1;
    return column < columns / 2 ? column + columns / 2 : column - columns / 2;
  }
  /// The column's rotated value.
  FLASHLATENT_HOST_DEVICE float rotated(int column, float x, float partner, Angle angle) const {
    const float other = product(partner, angle.sin);
    return sum(product(x, angle.cos), partner_of(column) > column ? -other : other);
  }
};

/// The exponent of an FP8 output's scale, ceil(log2(max(amax, 1e-10) / 448)).
FLASHLATENT_HOST_DEVICE int output_exponent(float amax) {
  constexpr int kLeast = -42;  // of 1e-10
  return e4m3::scale_exponent(amax, kLeast);
}

/// Columns that share a scale in the finest layout; four of them fill a word of ue8m0.
inline constexpr int kFineColumns = 32, kScaleColumns = 128;
inline constexpr int kMostColumns = 1024;
inline constexpr std::int64_t kTokenPadding = 4;

}  // namespace flashlatent::edges
