#include "flashlatent/edges.h"

#include "core/edge_check.h"
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

}  // namespace

Status prepare_queries(const ConstTensorView& q, float norm, const Rotation& rotate, const TensorView& out,
                       const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  FLASHLATENT_RETURN_IF_ERROR(expect_rows("q", q, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_epsilon("norm", norm));
  FLASHLATENT_RETURN_IF_ERROR(expect_rotation(rotate, kOwnRotation, "q", q, device));
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
  FLASHLATENT_RETURN_IF_ERROR(expect_rotation(rotate, kOwnRotation, "out", out, device));
  if (rotated.present()) FLASHLATENT_RETURN_IF_ERROR(expect_result("rotated", rotated, "out", out, device));
  if (fp8.present()) {
    FLASHLATENT_RETURN_IF_ERROR(expect_fp8_output(fp8, {"codes", "scales", "out"}, out, device));
    FLASHLATENT_RETURN_IF_ERROR(expect_apart("out", out, "codes", fp8.codes));
    FLASHLATENT_RETURN_IF_ERROR(expect_apart("out", out, "scales", fp8.scales));
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
