#include "dispatch/empty_rows.h"

#include <limits>

#if FLASHLATENT_WITH_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace flashlatent {

Status replace_empty_lse(const TensorView& lse, float value, [[maybe_unused]] const Executor& executor) {
  if (lse.elements() == 0) return {};
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) return cuda::replace_empty_lse(lse, value, executor);
#endif
  auto* data = static_cast<float*>(lse.data);
  for (std::int64_t i = 0; i < lse.shape[0]; ++i) {
    for (std::int64_t h = 0; h < lse.shape[1]; ++h) {
      for (std::int64_t t = 0; t < lse.shape[2]; ++t) {
        float& row = data[i * lse.strides[0] + h * lse.strides[1] + t * lse.strides[2]];
        if (row == -std::numeric_limits<float>::infinity()) row = value;
      }
    }
  }
  return {};
}

}  // namespace flashlatent
