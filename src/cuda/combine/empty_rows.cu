#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/cuda_backend.h"

namespace flashlatent::cuda {

namespace {

constexpr int kThreads = 256;

struct Rows {
  float* lse;
  std::int64_t count, heads, tokens;
  std::int64_t batch_stride, head_stride, token_stride;
};

__global__ void __launch_bounds__(kThreads) replace_empty_lse_kernel(const Rows rows, float value) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows.count; i += step) {
    float* lse = rows.lse + i / (rows.heads * rows.tokens) * rows.batch_stride +
                 i / rows.tokens % rows.heads * rows.head_stride + i % rows.tokens * rows.token_stride;
    if (*lse == -INFINITY) *lse = value;
  }
}

}  // namespace

Status replace_empty_lse(const TensorView& lse, float value, const Executor& executor) {
  const DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  const Rows rows{.lse = static_cast<float*>(lse.data),
                  .count = lse.elements(),
                  .heads = lse.shape[1],
                  .tokens = lse.shape[2],
                  .batch_stride = lse.strides[0],
                  .head_stride = lse.strides[1],
                  .token_stride = lse.strides[2]};
  const LaunchShape shape{
      .blocks = static_cast<int>(std::min<std::int64_t>((rows.count + kThreads - 1) / kThreads, 1024)),
      .threads = kThreads};
  return launch(replace_empty_lse_kernel, shape, executor, rows, value);
}

}  // namespace flashlatent::cuda
