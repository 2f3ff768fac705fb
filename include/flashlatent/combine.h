// Merging attention over disjoint sets of tokens: the combine step of Flash-Decoding.
#pragma once

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// Merges `n` partial results of the same query rows by their lse:
///   lse = ln sum_i exp lse_i;  out = sum_i exp(lse_i - lse) out_i.
/// Results with lse = -inf count for nothing, whatever their out holds; if all have it, out = 0 and lse =
/// -inf.
///   partial_out  fp32, or bf16 or fp16, (n, batch, s_q, h_q, d_v), innermost stride 1
///   partial_lse  fp32 (n, batch, h_q, s_q)
///   attn_sink    fp32 (h_q) or absent; see DecodeInputs
///   out          bf16, fp16 or fp32 (batch, s_q, h_q, d_v), innermost stride 1
///   lse          fp32 (batch, h_q, s_q)
/// lse tensors may have any strides; outputs overlap no other tensor; all tensors are on the executor's
/// device. Sums are fp32, in the order of partial results. kInvalidArgument names the tensor that does not
/// fit. On CUDA the call is one launch on the executor's stream.
Status combine(const ConstTensorView& partial_out, const ConstTensorView& partial_lse,
               const ConstTensorView& attn_sink, const TensorView& out, const TensorView& lse,
               const Executor& executor);

}  // namespace flashlatent
