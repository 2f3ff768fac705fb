// Operations on separate keys and values (kv_cache.h) on device memory, a kernel launch each; arguments are
// already validated. Plain C++: no CUDA header.
#pragma once

#include "flashlatent/kv_cache.h"

namespace flashlatent::cuda {

Status append_kv(const ConstTensorView& keys, const ConstTensorView& values,
                 const ConstTensorView& slot_mapping, const KeyValueCache& cache, const Executor& executor);
Status gather_kv(const ConstKeyValueCache& cache, const ConstTensorView& block_table,
                 const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                 const TensorView& keys, const TensorView& values, const Executor& executor);
Status convert_kv(const ConstKeyValueCache& from, const KeyValueCache& to, const Executor& executor);

}  // namespace flashlatent::cuda
