// A row of an FP8 output in OutputColumns::kHeads, on the CPU, for those who judge it.
#pragma once

#include <cstdint>

#include "core/e4m3.h"
#include "core/rotation.h"
#include "flashlatent/edges.h"

namespace flashlatent::runtime {

class Fp8Row {
 public:
  /// A row among `heads` heads of `dim` columns; `token` counts the query tokens of all requests.
  Fp8Row(const Fp8Output& fp8, std::int64_t token, std::int64_t head, std::int64_t heads, std::int64_t dim)
      : scales_(fp8.scales), token_(token) {
    const std::int64_t group_heads = heads / fp8.codes.shape[1];
    group_ = head / group_heads;
    first_ = head % group_heads * dim;
    codes_ = static_cast<const std::uint8_t*>(fp8.codes.data) + token * fp8.codes.strides[0] +
             group_ * fp8.codes.strides[1] + first_;
  }

  /// Columns with one scale.
  int columns() const { return fine() ? edges::kFineColumns : edges::kScaleColumns; }
  float scale(std::int64_t column) const {
    const std::int64_t line = (first_ + column) / edges::kScaleColumns;
    const std::int64_t at = (group_ * scales_.shape[1] + line) * scales_.shape[2] + token_;
    if (!fine()) return static_cast<const float*>(scales_.data)[at];
    const auto* bytes = static_cast<const std::uint8_t*>(scales_.data) + 4 * at;
    return e4m3::power_of_two(bytes[column / edges::kFineColumns % 4] - 127);
  }
  std::uint8_t code(std::int64_t column) const { return codes_[column]; }
  /// In fp64: it may be larger than fp32 has.
  double value(std::int64_t column) const { return double{e4m3::decode(code(column))} * scale(column); }

  /// The scale of columns whose largest magnitude is `amax`.
  static float scale_of(float amax) { return e4m3::power_of_two(edges::output_exponent(amax)); }

 private:
  bool fine() const { return scales_.dtype == Dtype::kI32; }

  const TensorView scales_;
  const std::int64_t token_;
  std::int64_t group_ = 0, first_ = 0;
  const std::uint8_t* codes_ = nullptr;
};

}  // namespace flashlatent::runtime
