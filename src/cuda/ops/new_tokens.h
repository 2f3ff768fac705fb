// New tokens that are normalised and rotated before they are stored, to which cache_ops.cu delegates.
#pragma once

#include "cuda/ops/records.h"
#include "flashlatent/edges.h"

namespace flashlatent::cuda {

/// append_latent() with edges, or of fp32, into any format, in one launch.
Status append_new_tokens(const ConstTensorView& latent, const ConstTensorView& rope,
                         const ConstTensorView& slot_mapping, const RecordCache& cache,
                         const TokenEdges& edges, const Executor& executor);

}  // namespace flashlatent::cuda
