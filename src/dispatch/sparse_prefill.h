// Sparse prefill as sparse decode: each query token is a request, and the largest score is an output, too.
#pragma once

#include "dispatch/select.h"
#include "flashlatent/decode.h"
#include "flashlatent/sparse_prefill.h"

namespace flashlatent {

/// The decode call for a sparse prefill. Its tensors are views of the same memory.
struct SparsePrefillCall {
  DecodeProblem problem;  ///< batch is s_q. Contiguous rows are pages of one token.
  DecodeInputs inputs;
};

/// kInvalidArgument names the tensor of `inputs` that does not fit. No element is read.
Result<SparsePrefillCall> as_decode(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                                    Device device);

/// The purpose of a sparse prefill on this backend. On CUDA query tokens are taken by Partition::kTurns,
/// without plan and workspace. `max_logits`: are the largest scores wanted?
Purpose purpose_on(Backend backend, bool max_logits = true);

/// The name of the kernel that a call with these tensors runs.
Result<std::string> sparse_prefill_kernel(const SparsePrefillInputs& inputs,
                                          const SparsePrefillOutputs& outputs,
                                          const SparsePrefillOptions& options, const Executor& executor);

/// The edges that the kernel of such a call has in its own passes. The tensors are validated.
Result<FusedEdges> sparse_prefill_edges(const SparsePrefillInputs& inputs,
                                        const SparsePrefillOutputs& outputs,
                                        const SparsePrefillOptions& options, const Executor& executor);

/// A view of (s_q, h_q, d) as (s_q, 1, h_q, d).
template <class View>
View with_query_token(View view) {
  view.shape = {view.shape[0], 1, view.shape[1], view.shape[2]};
  view.strides = {view.strides[0], view.strides[0], view.strides[1], view.strides[2]};
  view.rank = 4;
  return view;
}

/// The same of an output, which may be absent.
inline TensorView out_as_decode(const SparsePrefillOutputs& outputs) {
  return outputs.out.present() ? with_query_token(outputs.out) : TensorView();
}

/// The largest scores as a kernel writes them, (s_q, h_q, 1); absent if the call does not want them.
TensorView max_logits_as_decode(const SparsePrefillOutputs& outputs);

/// A rotation with positions (s_q) as one with (s_q, 1).
inline Rotation with_query_token(Rotation rotation) {
  ConstTensorView& positions = rotation.positions;
  if (!positions.present()) return rotation;
  positions.shape = {positions.shape[0], 1};
  positions.strides = {positions.strides[0], positions.strides[0]};
  positions.rank = 2;
  return rotation;
}

/// A view of (s_q, h_q) as (s_q, h_q, 1).
template <class View>
View with_last_query_token(View view) {
  view.shape = {view.shape[0], view.shape[1], 1};
  view.strides = {view.strides[0], view.strides[1], 1};
  view.rank = 3;
  return view;
}

}  // namespace flashlatent
