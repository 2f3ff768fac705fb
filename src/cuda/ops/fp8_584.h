// Operations on fp8_584 caches, whose tokens lie in two places; cache_ops.cu delegates to them.
#pragma once

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent::cuda {

Status append_584(const ConstTensorView& latent, const ConstTensorView& rope,
                  const ConstTensorView& slot_mapping, const TensorView& kv_cache, const Executor& executor);
/// One cache is fp8_584; the other is fp8_584 or plain.
Status convert_584(const ConstTensorView& from, const TensorView& to, const Executor& executor);
Status gather_584(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                  const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                  const TensorView& out, const Executor& executor);

}  // namespace flashlatent::cuda
