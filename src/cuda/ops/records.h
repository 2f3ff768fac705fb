// Operations on caches in any format of a token's bytes, and from one format of bytes to another;
// cache_ops.cu delegates formats without kernels of their own.
#pragma once

#include "core/formats/formats.h"
#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent::cuda {

/// A cache, its format, the scale of an e4m3 cache, and the least exponent of scales that are written.
struct RecordCache {
  ConstTensorView view;
  const LatentFormat& format;
  ConstTensorView scale = {};
  int least_exponent = 0;
};

/// Tokens of bytes are moved by words of 16 or 8: is the cache aligned to them?
Status check_record_aligned(const char* name, const RecordCache& cache);

Status append_records(const ConstTensorView& latent, const ConstTensorView& rope,
                      const ConstTensorView& slot_mapping, const RecordCache& cache,
                      const Executor& executor);
/// One KV head on both sides.
Status convert_records(const RecordCache& from, const RecordCache& to, const Executor& executor);
Status gather_records(const RecordCache& cache, const ConstTensorView& block_table,
                      const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                      const TensorView& out, const Executor& executor);

}  // namespace flashlatent::cuda
