// The CPU backend as the dispatcher sees it.
#pragma once

#include "flashlatent/kv_cache.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::cpu {

/// The fast kernel: SIMD by Highway, threads by OpenMP.
extern const DecodeKernel kDenseKernel;
/// The float64 oracle as a kernel, to run only when asked for by name.
extern const DecodeKernel kReferenceKernel;

/// flashlatent::combine on host memory; arguments are already validated.
Status combine(const ConstTensorView& partial_out, const ConstTensorView& partial_lse,
               const ConstTensorView& attn_sink, const TensorView& out, const TensorView& lse,
               const Executor& executor);

/// The operations of flashlatent/kv_cache.h on host memory; of their arguments all but the values of slots,
/// pages and sequence lengths are already validated.
Status append_latent(const ConstTensorView& latent, const ConstTensorView& rope,
                     const ConstTensorView& slot_mapping, const TensorView& kv_cache,
                     const Executor& executor);
Status convert_cache(const ConstTensorView& from, const TensorView& to, const Executor& executor);
Status gather_cache(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                    const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                    const TensorView& out, const Executor& executor);
Status copy_pages(const ConstTensorView& from, const TensorView& to, const ConstTensorView& pairs,
                  const Executor& executor);

Status append_kv(const ConstTensorView& keys, const ConstTensorView& values,
                 const ConstTensorView& slot_mapping, const KeyValueCache& cache, const Executor& executor);
Status gather_kv(const ConstKeyValueCache& cache, const ConstTensorView& block_table,
                 const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                 const TensorView& keys, const TensorView& values, const Executor& executor);
Status convert_kv(const ConstKeyValueCache& from, const KeyValueCache& to, const Executor& executor);

/// The SIMD target that run-time dispatch picked, such as "AVX3".
const char* simd_target();

}  // namespace flashlatent::cpu
