#include "python/src/capture.h"

#if FLASHLATENT_WITH_CUDA
#include "cuda/common/runtime.h"
#include "python/src/errors.h"
#endif

namespace flashlatent::python {

unsigned long long capture_id([[maybe_unused]] Device device, [[maybe_unused]] void* stream) {
#if FLASHLATENT_WITH_CUDA
  if (device.type == DeviceType::kCuda) {
    const cuda::DeviceGuard guard(device.index);
    check(guard.status());
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    check(cuda::to_status(cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id),
                          "cudaStreamGetCaptureInfo"));
    if (status == cudaStreamCaptureStatusActive) return id;
  }
#endif
  return 0;
}

}  // namespace flashlatent::python
