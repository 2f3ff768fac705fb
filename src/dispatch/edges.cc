#include "flashlatent/edges.h"

#include <cmath>

#include "core/expect.h"
#include "core/message.h"
#include "core/overlap.h"
#include "core/rotation.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"
#include "dispatch/token_edges.h"

namespace flashlatent {

namespace {

Status expect_rows(const char* name, const ConstTensorView& view, Device device) {
  if (!view.present() || !is_half(view.dtype) || (view.rank != 3 && view.rank != 4)) {
    return invalid_argument(name, " is ", view.present() ? to_string(view) : "missing",
                            "; expected bf16 or fp16 (tokens, heads, d) or (batch, s_q, heads, d) on ",
                            to_string(device));
  }
  const std::vector<std::int64_t> any(view.rank, -1);
  FLASHLATENT_RETURN_IF_ERROR(expect_strided(name, view, view.dtype, device, any));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable(name, view));
  const std::int64_t d = view.shape[view.rank - 1];
  if (d >= 8 && d % 8 == 0 && d <= edges::kMostColumns) return {};
  return invalid_argument(name, " is ", to_string(view), "; heads of a multiple of 8 elements up to ",
                          edges::kMostColumns, " are accepted");
}

/// As `like`; itself, or apart from it.
Status expect_result(const char* name, const ConstTensorView& view, const char* like_name,
                     const ConstTensorView& like, Device device) {
  const std::vector<std::int64_t> shape(like.shape.begin(), like.shape.begin() + like.rank);
  FLASHLATENT_RETURN_IF_ERROR(expect_strided(name, view, like.dtype, device, shape));
  if (view.data == like.data && view.strides == like.strides) return {};
  return expect_apart(like_name, like, name, view);
}

Status expect_rotation(const Rotation& rotate, const char* of, const ConstTensorView& rows, Device device) {
  if (!rotate.present()) return {};
  if (!rotate.positions.present() || !rotate.table.present()) {
    return invalid_argument("rotate has ", rotate.table.present() ? "no positions" : "no table",
                            "; positions and table go together");
  }
  const std::vector<std::int64_t> tokens(rows.shape.begin(), rows.shape.begin() + rows.rank - 2);
  const Dtype integers = rotate.positions.dtype == Dtype::kI64 ? Dtype::kI64 : Dtype::kI32;
  FLASHLATENT_RETURN_IF_ERROR(expect("positions", rotate.positions, integers, device, tokens));
  const Dtype numbers = rotate.table.dtype == Dtype::kBF16 ? Dtype::kBF16 : Dtype::kF32;
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("table", rotate.table, numbers, device, {-1, -1}));
  const std::int64_t columns = rotate.table.shape[1], d = rows.shape[rows.rank - 1];
  if (columns >= 16 && columns % 16 == 0 && columns <= d) return {};
  return invalid_argument("table is ", to_string(rotate.table), " and ", of, " is ", to_string(rows),
                          "; a multiple of 16 columns, up to those of a head, is accepted");
}

Status expect_fp8(const Fp8Output& fp8, const ConstTensorView& out, Device device) {
  const int first = out.rank - 3;
  const std::int64_t tokens = out.shape[first] * (first > 0 ? out.shape[0] : 1);
  const std::int64_t heads = out.shape[first + 1], d = out.shape[first + 2];
  if (!fp8.codes.present() || fp8.codes.rank != 3) {
    return invalid_argument("codes is ", fp8.codes.present() ? to_string(fp8.codes) : "missing",
                            "; expected uint8 (tokens, groups, heads / groups * v_dim) on ",
                            to_string(device));
  }
  const std::int64_t groups = fp8.codes.shape[1];
  if (groups < 1 || heads % groups != 0) {
    return invalid_argument("codes is ", to_string(fp8.codes), " and out is ", to_string(out),
                            "; groups must divide the heads");
  }
  if (d % edges::kScaleColumns != 0) {
    return invalid_argument("out is ", to_string(out), "; an FP8 output has heads of a multiple of ",
                            edges::kScaleColumns, " elements");
  }
  const std::int64_t columns = heads / groups * d;
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided("codes", fp8.codes, Dtype::kU8, device, {tokens, groups, columns}));
  const std::int64_t padded =
      (tokens + edges::kTokenPadding - 1) / edges::kTokenPadding * edges::kTokenPadding;
  const bool fine = fp8.scales.dtype == Dtype::kI32 || fp8.columns == OutputColumns::kTiles;
  const Dtype dtype = fine ? Dtype::kI32 : Dtype::kF32;
  FLASHLATENT_RETURN_IF_ERROR(
      expect("scales", fp8.scales, dtype, device, {groups, columns / edges::kScaleColumns, padded}));
  const TensorView contiguous(fp8.scales.data, dtype, {groups, columns / edges::kScaleColumns, padded},
                              device);
  if (fp8.scales.elements() > 0 && fp8.scales.strides != contiguous.strides) {
    return invalid_argument("scales is ", to_string(fp8.scales), "; it must be contiguous");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_apart("out", out, "codes", fp8.codes));
  return expect_apart("out", out, "scales", fp8.scales);
}

}  // namespace

Status prepare_queries(const ConstTensorView& q, float norm, const Rotation& rotate, const TensorView& out,
                       const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  FLASHLATENT_RETURN_IF_ERROR(expect_rows("q", q, device));
  if (!(norm >= 0) || std::isinf(norm)) {
    return invalid_argument("norm is ", norm, "; a finite epsilon of 0 (no norm) or more is accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_rotation(rotate, "q", q, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_result("out", out, "q", q, device));
  const ConstTensorView result = out;
  const NamedView written[] = {{"out", &result}};
  FLASHLATENT_RETURN_IF_ERROR(expect_apart_from(written, rotate, {}));
  if (q.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, prepare_queries)(q, norm, rotate, out, executor);
}

Status finish_outputs(const ConstTensorView& out, const Rotation& rotate, const TensorView& rotated,
                      const Fp8Output& fp8, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  FLASHLATENT_RETURN_IF_ERROR(expect_rows("out", out, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_rotation(rotate, "out", out, device));
  if (rotated.present()) FLASHLATENT_RETURN_IF_ERROR(expect_result("rotated", rotated, "out", out, device));
  if (fp8.present()) {
    FLASHLATENT_RETURN_IF_ERROR(expect_fp8(fp8, out, device));
  }
  if (!rotated.present() && !fp8.present()) {
    return invalid_argument("rotated and codes are missing; one of them is expected");
  }
  const ConstTensorView codes = fp8.codes, scales = fp8.scales, turned = rotated;
  const NamedView all[] = {{"rotated", &turned}, {"codes", &codes}, {"scales", &scales}};
  const std::size_t first = rotated.present() ? 0 : 1, count = fp8.present() ? 3 : 1;
  const std::span written = std::span(all).subspan(first, count - first);
  FLASHLATENT_RETURN_IF_ERROR(expect_apart_from(written, rotate, {}));
  if (out.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, finish_outputs)(out, rotate, rotated, fp8, executor);
}

}  // namespace flashlatent
