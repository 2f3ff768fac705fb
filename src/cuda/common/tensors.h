// How a call's tensors lie in memory: what kernels ask of that.
#pragma once

#include "flashlatent/decode.h"

namespace flashlatent::cuda {

/// Are the address and all strides but the innermost multiples of `bytes`, which a kernel moves at a time?
bool is_aligned(const ConstTensorView& view, int bytes);
/// kInvalidArgument if they are not.
Status check_alignment(const char* name, const ConstTensorView& view, int bytes);
/// Can int32 name all pages?
Status check_pages(const char* name, const ConstTensorView& cache);

/// q or out with four dimensions: ragged ones, (tokens, heads, dim), as a batch of single tokens, of which a
/// request has several one after another.
template <class View>
View with_batch(const View& view) {
  if (view.rank == 4) return view;
  View batch = view;
  batch.rank = 4;
  batch.shape = {view.shape[0], 1, view.shape[1], view.shape[2]};
  batch.strides = {view.strides[0], view.strides[0], view.strides[1], view.strides[2]};
  return batch;
}

/// Are the rows of a tile, token by token and in each the heads of a group, at equal distances?
bool rows_in_line(const DecodeProblem& problem, const ConstTensorView& q);

/// Does every head of a cache begin at a whole chunk of its token, 128 bytes?
bool heads_in_chunks(const ConstTensorView& cache);

}  // namespace flashlatent::cuda
