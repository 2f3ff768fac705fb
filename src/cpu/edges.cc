// The edges of a layer on the host: rows one by one, on threads.
#include <array>
#include <cmath>

#include "core/edge_check.h"
#include "core/edge_rows.h"
#include "core/element.h"
#include "core/message.h"
#include "cpu/cpu_backend.h"
#include "cpu/parallel.h"
#include "cpu/token_rows.h"

namespace flashlatent::cpu {

namespace {

using edges::Place;
using edges::Rotary;
using edges::Rows;

using Row = std::array<float, edges::kMostColumns>;

/// Non-finite values are left out.
float largest_magnitude(const float* x, int count) {
  float largest = 0;
  for (int i = 0; i < count; ++i) {
    if (std::isfinite(x[i])) largest = std::max(largest, std::fabs(x[i]));
  }
  return largest;
}

/// Writes one row of an FP8 output. `token` counts the tokens of all requests.
void cast_row(const Row& x, const Rows& rows, std::int64_t token, std::int64_t head, const Fp8Output& fp8) {
  const std::int64_t groups = fp8.codes.shape[1], heads = rows.heads / groups, padded = fp8.scales.shape[2];
  const std::int64_t group = head / heads, in_group = head % heads;
  auto* codes = static_cast<std::uint8_t*>(fp8.codes.data) + token * fp8.codes.strides[0] +
                group * fp8.codes.strides[1];
  const bool fine = fp8.scales.dtype == Dtype::kI32, tiles = fp8.columns == OutputColumns::kTiles;
  const int columns = fine ? edges::kFineColumns : edges::kScaleColumns;
  for (int begin = 0; begin < rows.dim; begin += columns) {
    const int exponent = edges::output_exponent(largest_magnitude(&x[begin], columns));
    const std::int64_t column = tiles ? begin * heads + in_group * columns : in_group * rows.dim + begin;
    for (int i = 0; i < columns; ++i) {
      codes[column + i] = e4m3::encode(edges::product(x[begin + i], e4m3::power_of_two(-exponent)));
    }
    const std::int64_t at = (group * fp8.scales.shape[1] + column / edges::kScaleColumns) * padded + token;
    if (fine) {
      static_cast<std::uint8_t*>(fp8.scales.data)[4 * at + column / columns % 4] =
          static_cast<std::uint8_t>(exponent + 127);
    } else {
      static_cast<float*>(fp8.scales.data)[at] = e4m3::power_of_two(exponent);
    }
  }
}

void clear_padding(const Fp8Output& fp8) {
  const std::int64_t tokens = fp8.codes.shape[0], padded = fp8.scales.shape[2];
  for (std::int64_t line = 0; line < fp8.scales.shape[0] * fp8.scales.shape[1]; ++line) {
    for (std::int64_t token = tokens; token < padded; ++token) {
      static_cast<std::uint32_t*>(fp8.scales.data)[line * padded + token] = 0;
    }
  }
}

int threads_of(const Executor& executor) {
  return executor.threads > 0 ? executor.threads : hardware_threads();
}

/// The sum of squares in the order of a warp's lanes: each lane has every 32nd word of 8 elements.
float sum_of_squares(const float* x, int dim) {
  constexpr int kLanes = 32, kWord = 8;
  std::array<float, kLanes> sums{};
  for (int i = 0; i < dim; ++i) {
    float& lane = sums[i / kWord % kLanes];
    lane = edges::sum(lane, edges::product(x[i], x[i]));
  }
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    std::array<float, kLanes> next{};
    for (int lane = 0; lane < kLanes; ++lane) next[lane] = edges::sum(sums[lane], sums[lane ^ apart]);
    sums = next;
  }
  return sums[0];
}

}  // namespace

void prepare_row(float* row, int dim, float norm, const Rotary& rotary, std::int64_t position) {
  if (norm > 0) {
    const float factor = edges::norm_factor(sum_of_squares(row, dim), dim, norm);
    for (int i = 0; i < dim; ++i) row[i] = edges::product(row[i], factor);
  }
  if (rotary.positions != nullptr) rotate_columns(row, dim - rotary.columns, rotary, position);
}

Status prepare_queries(const ConstTensorView& q, float norm, const Rotation& rotate, const TensorView& out,
                       const Executor& executor) {
  const Rows from(q), to{ConstTensorView(out)};
  const Rotary rotary = edges::rotary_of(rotate, /*back=*/false);
  FLASHLATENT_RETURN_IF_ERROR(expect_positions(rotate, kOwnRotation, q));
  parallel_for(from.count(), threads_of(executor), [&](std::int64_t row) {
    const Place place(from, row);
    Row x;
    const auto* read = static_cast<const std::uint16_t*>(from.data) + place.offset(from);
    for (int i = 0; i < from.dim; ++i) x[i] = to_float(read[i], q.dtype);
    const std::int64_t position =
        rotary.positions == nullptr ? 0 : rotary.position(place.request, place.token);
    prepare_row(x.data(), from.dim, norm, rotary, position);
    auto* write = static_cast<std::uint16_t*>(out.data) + place.offset(to);
    for (int i = 0; i < from.dim; ++i) write[i] = from_float(x[i], q.dtype);
  });
  return {};
}

Status finish_outputs(const ConstTensorView& out, const Rotation& rotate, const TensorView& rotated,
                      const Fp8Output& fp8, const Executor& executor) {
  const Rows from(out), to{ConstTensorView(rotated)};
  const Rotary rotary = edges::rotary_of(rotate, /*back=*/true);
  FLASHLATENT_RETURN_IF_ERROR(expect_positions(rotate, kOwnRotation, out));
  parallel_for(from.count(), threads_of(executor), [&](std::int64_t row) {
    const Place place(from, row);
    Row x;
    const auto* read = static_cast<const std::uint16_t*>(from.data) + place.offset(from);
    for (int i = 0; i < from.dim; ++i) x[i] = to_float(read[i], out.dtype);
    if (rotary.positions != nullptr)
      rotate_columns(x.data(), from.dim - rotary.columns, rotary,
                     rotary.position(place.request, place.token));
    if (fp8.present()) cast_row(x, from, place.request * from.tokens + place.token, place.head, fp8);
    if (!rotated.present()) return;
    auto* write = static_cast<std::uint16_t*>(rotated.data) + place.offset(to);
    for (int i = 0; i < from.dim; ++i) write[i] = from_float(x[i], out.dtype);
  });
  if (fp8.present()) clear_padding(fp8);
  return {};
}

}  // namespace flashlatent::cpu
