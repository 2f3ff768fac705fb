// Sparse prefill is sparse decode of requests of one query token each, of which the largest score is wanted,
// too.
#pragma once

#include "dispatch/select.h"
#include "flashlatent/decode.h"
#include "flashlatent/sparse_prefill.h"

namespace flashlatent {

/// The decode call that a sparse prefill is; its tensors are views of the same memory.
struct SparsePrefillCall {
  DecodeProblem problem;  ///< batch is s_q; of contiguous rows each is a page.
  DecodeInputs inputs;
};

/// kInvalidArgument names the tensor of `inputs` that does not fit. No element is read.
Result<SparsePrefillCall> as_decode(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                                    Device device);

/// For what kernels are asked on a backend: on CUDA query tokens come in turn, without plan and workspace.
Purpose purpose_on(Backend backend);

/// The kernel that a call with these tensors runs.
Result<std::string> sparse_prefill_kernel(const SparsePrefillInputs& inputs,
                                          const SparsePrefillOutputs& outputs,
                                          const SparsePrefillOptions& options, const Executor& executor);

/// (s_q, h_q, d) as (s_q, 1, h_q, d).
template <class View>
View with_query_token(View view) {
  view.shape = {view.shape[0], 1, view.shape[1], view.shape[2]};
  view.strides = {view.strides[0], view.strides[0], view.strides[1], view.strides[2]};
  view.rank = 4;
  return view;
}

/// (s_q, h_q) as (s_q, h_q, 1).
template <class View>
View with_last_query_token(View view) {
  view.shape = {view.shape[0], view.shape[1], 1};
  view.strides = {view.strides[0], view.strides[1], 1};
  view.rank = 3;
  return view;
}

}  // namespace flashlatent
