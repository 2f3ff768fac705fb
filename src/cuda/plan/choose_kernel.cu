// plan/chosen_kernel.h: the longest request decides, by one CTA.
#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"

namespace flashlatent::cuda {

namespace choosing {

namespace {

using schedule::KernelRange;

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    choose_kernel(const std::int32_t* lengths, std::int64_t stride, std::int32_t requests,
                  std::int32_t near_tokens, KernelRange* chosen) {
  bool is_long = false;
  for (std::int32_t r = threadIdx.x; r < requests; r += kThreads) {
    is_long = is_long || lengths[r * stride] > near_tokens;
  }
  const bool any = __syncthreads_or(is_long);
  if (threadIdx.x == 0) *chosen = any ? KernelRange::kFar : KernelRange::kNear;
}

}  // namespace

}  // namespace choosing

Status choose_kernel(const ConstTensorView& lengths, std::int32_t near_tokens, schedule::KernelRange* chosen,
                     const Executor& executor) {
  using namespace choosing;
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  LaunchShape shape;
  shape.threads = kThreads;
  return launch(choosing::choose_kernel, shape, executor, static_cast<const std::int32_t*>(lengths.data),
                lengths.strides[0], static_cast<std::int32_t>(lengths.shape[0]), near_tokens, chosen);
}

}  // namespace flashlatent::cuda
