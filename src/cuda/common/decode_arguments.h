// From a call's tensors to what its kernel is launched with, as far as that is the same for every decode
// kernel.
#pragma once

#include "cuda/parts/arguments.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::cuda {

/// Are the address and all strides but the innermost multiples of `bytes`, which a kernel moves at a time?
bool is_aligned(const ConstTensorView& view, int bytes);
/// kInvalidArgument if they are not.
Status check_alignment(const char* name, const ConstTensorView& view, int bytes);
/// Can int32 name all pages?
Status check_pages(const char* name, const ConstTensorView& cache);

/// Tokens that a page table has room for (sparse: topk), as far as the kernels count.
std::int32_t reach_of(const DecodeProblem& problem);

/// Room for the partial results of all slots.
std::size_t decode_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);

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

/// All but where the cache's elements are.
parts::DecodeArguments decode_arguments(const DecodeCall& call);

/// lse of an empty row for the query tokens that ragged requests do not have.
Status write_missing_rows(const parts::DecodeArguments& args, int heads, const Executor& executor);

}  // namespace flashlatent::cuda
