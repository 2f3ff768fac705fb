// Do the tensors of index_topk() and its relatives fit? All backends call these functions, so all refuse with
// the same messages. Errors: kInvalidArgument.
#pragma once

#include "core/index_call.h"

namespace flashlatent {

/// The call that backends take. `device`: where all tensors must be. No element is read, but on the CPU those
/// of cu_seqlens_q.
Result<IndexCall> index_call(const IndexTopkInputs& inputs, const IndexTopkOutputs& outputs,
                             const IndexTopkOptions& options, Device device);

/// Do inputs, outputs and workspace lie apart?
Status expect_apart(const IndexTopkInputs& inputs, const IndexTopkOutputs& outputs, Memory workspace,
                    Device device);

/// The same of merge_topk().
Result<MergeCall> merge_call(const ConstTensorView& scores, const ConstTensorView& counts,
                             const ConstTensorView& indices, int rank, const TensorView& out,
                             const TensorView& out_counts, Device device);

/// A cache of index keys: uint8 (pages, page_bytes).
Status expect_index_cache(const ConstTensorView& cache, IndexFormat format, int page_size, Device device);

}  // namespace flashlatent
