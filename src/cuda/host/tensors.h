// What kernels need to know about how a call's tensors lie in memory.
#pragma once

#include "flashlatent/decode.h"

namespace flashlatent::cuda {

/// Are the address and all strides but the innermost multiples of `bytes`, the unit in which a kernel copies?
bool is_aligned(const ConstTensorView& view, int bytes);
/// kInvalidArgument if they are not.
Status check_alignment(const char* name, const ConstTensorView& view, int bytes);
/// Can int32 name all pages?
Status check_pages(const char* name, const ConstTensorView& cache);

/// q or out with four dimensions. Ragged ones, (tokens, heads, dim), become a batch of single tokens; a
/// request has several consecutive ones.
template <class View>
View with_batch(const View& view) {
  if (view.rank == 4) return view;
  View batch = view;
  batch.rank = 4;
  batch.shape = {view.shape[0], 1, view.shape[1], view.shape[2]};
  batch.strides = {view.strides[0], view.strides[0], view.strides[1], view.strides[2]};
  return batch;
}

/// Are a tile's rows (token by token, and in each token the heads of a group) at equal distances, in q and in
/// q_rope?
bool rows_in_line(const DecodeProblem& problem, const DecodeInputs& inputs);

/// Are rows at equal distances, or are a query token's heads whole boxes of rows (32 or 64), or is such a box
/// whole query tokens?
bool rows_in_boxes(const DecodeProblem& problem, const DecodeInputs& inputs);

/// Does every head of a cache begin at a whole chunk (128 bytes) of its token?
bool heads_in_chunks(const ConstTensorView& cache);

}  // namespace flashlatent::cuda
