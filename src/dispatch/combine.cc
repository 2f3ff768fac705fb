#include "flashlatent/combine.h"

#include "core/expect.h"
#include "core/message.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"

namespace flashlatent {

namespace {

Status validate_combine(const ConstTensorView& partial_out, const ConstTensorView& partial_lse,
                        const ConstTensorView& attn_sink, const TensorView& out, const TensorView& lse,
                        Device device) {
  auto known = [](Dtype dtype) {
    return dtype == Dtype::kBF16 || dtype == Dtype::kF16 || dtype == Dtype::kF32;
  };
  if (partial_out.present() && !known(partial_out.dtype)) {
    return invalid_argument("partial_out is ", to_string(partial_out), "; fp32, bf16 and fp16 are accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("partial_out", partial_out,
                                             partial_out.present() ? partial_out.dtype : Dtype::kF32, device,
                                             {-1, -1, -1, -1, -1}));
  const auto& [n, batch, s_q, h_q, d_v] = partial_out.shape;
  // Any strides are accepted: lse tensors may be transposed views.
  FLASHLATENT_RETURN_IF_ERROR(expect("partial_lse", partial_lse, Dtype::kF32, device, {n, batch, h_q, s_q}));
  if (out.present() && !known(out.dtype)) {
    return invalid_argument("out is ", to_string(out), "; bf16, fp16 and fp32 are accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided("out", out, out.present() ? out.dtype : Dtype::kBF16, device, {batch, s_q, h_q, d_v}));
  FLASHLATENT_RETURN_IF_ERROR(expect("lse", lse, Dtype::kF32, device, {batch, h_q, s_q}));
  return attn_sink.present() ? expect_strided("attn_sink", attn_sink, Dtype::kF32, device, {h_q}) : Status{};
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
