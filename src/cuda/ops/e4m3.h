// Operations on e4m3 caches, to which cache_ops.cu delegates.
#pragma once

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent::cuda {

Status append_e4m3(const ConstTensorView& latent, const ConstTensorView& rope,
                   const ConstTensorView& slot_mapping, const TensorView& kv_cache,
                   const ConstTensorView& kv_scale, const Executor& executor);
/// One cache is e4m3; the other is e4m3 or plain.
Status convert_e4m3(const ConstTensorView& from, const ConstTensorView& from_scale, const TensorView& to,
                    const ConstTensorView& to_scale, const Executor& executor);
Status gather_e4m3(const ConstTensorView& kv_cache, const ConstTensorView& kv_scale,
                   const ConstTensorView& block_table, const ConstTensorView& cu_seqlens,
                   const ConstTensorView& first_token, const TensorView& out, const Executor& executor);

}  // namespace flashlatent::cuda
