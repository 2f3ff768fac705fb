#include "flashlatent/combine.h"

#include "core/message.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"

namespace flashlatent {

namespace {

Status expect(const char* name, const ConstTensorView& view, Device device, int rank) {
  if (view.rank != rank || view.device != device || (view.data == nullptr && view.elements() > 0)) {
    return invalid_argument(name, " is ", to_string(view), "; expected rank ", rank, " on ",
                            to_string(device));
  }
  if (view.strides[rank - 1] != 1 && view.shape[rank - 1] > 1 && view.elements() > 0) {
    return invalid_argument(name, " is ", to_string(view), "; its innermost stride must be 1");
  }
  return {};
}

Status validate_combine(const ConstTensorView& partial_out, const ConstTensorView& partial_lse,
                        const ConstTensorView& attn_sink, const TensorView& out, const TensorView& lse,
                        Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect("partial_out", partial_out, device, 5));
  FLASHLATENT_RETURN_IF_ERROR(expect("out", out, device, 4));
  // lse tensors may be transposed views: any strides will do.
  const auto& shape = partial_out.shape;
  auto matches = [&](const ConstTensorView& view, std::initializer_list<std::int64_t> wanted) {
    int i = 0;
    for (std::int64_t extent : wanted) {
      if (i >= view.rank || view.shape[i++] != extent) return false;
    }
    return i == view.rank && view.device == device && (view.data != nullptr || view.elements() == 0);
  };
  if (partial_out.dtype != Dtype::kF32) {
    return invalid_argument("partial_out is ", to_string(partial_out), "; expected fp32");
  }
  if (partial_lse.dtype != Dtype::kF32 || !matches(partial_lse, {shape[0], shape[1], shape[3], shape[2]})) {
    return invalid_argument("partial_lse is ", to_string(partial_lse),
                            "; expected fp32 (n, batch, h_q, s_q) of ", to_string(partial_out));
  }
  if ((out.dtype != Dtype::kBF16 && out.dtype != Dtype::kF16 && out.dtype != Dtype::kF32) ||
      !matches(out, {shape[1], shape[2], shape[3], shape[4]})) {
    return invalid_argument("out is ", to_string(out),
                            "; expected bf16, fp16 or fp32 (batch, s_q, h_q, d_v) of ",
                            to_string(partial_out));
  }
  if (lse.dtype != Dtype::kF32 || !matches(lse, {shape[1], shape[3], shape[2]})) {
    return invalid_argument("lse is ", to_string(lse), "; expected fp32 (batch, h_q, s_q) of ",
                            to_string(partial_out));
  }
  if (attn_sink.present() && (attn_sink.dtype != Dtype::kF32 || !matches(attn_sink, {shape[3]}) ||
                              (attn_sink.strides[0] != 1 && shape[3] > 1))) {
    return invalid_argument("attn_sink is ", to_string(attn_sink),
                            "; expected contiguous fp32 (h_q = ", shape[3], ")");
  }
  return {};
}

}  // namespace

Status combine(const ConstTensorView& partial_out, const ConstTensorView& partial_lse,
               const ConstTensorView& attn_sink, const TensorView& out, const TensorView& lse,
               const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_RETURN_IF_ERROR(
      validate_combine(partial_out, partial_lse, attn_sink, out, lse, device_of(executor)));
  if (out.elements() == 0 && lse.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, combine)(partial_out, partial_lse, attn_sink, out, lse, executor);
}

}  // namespace flashlatent
