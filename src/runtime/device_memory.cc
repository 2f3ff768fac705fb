#include "runtime/device_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/message.h"
#include "cpu/parallel.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/host/runtime.h"
#endif

namespace flashlatent::runtime {

namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kPiece = std::size_t{1} << 20;  // bytes that a thread copies at a time

#if FLASHLATENT_WITH_CUDA
cudaStream_t stream_of(const Executor& executor) {
  return static_cast<cudaStream_t>(executor.stream);
}
#else
Status not_built() {
  return available(Backend::kCuda);
}
#endif

}  // namespace

Result<Buffer> Buffer::allocate(const Executor& executor, std::size_t bytes) {
  Buffer buffer;
  buffer.backend_ = executor.backend;
  buffer.bytes_ = bytes;
  const std::size_t rounded =
      (bytes + kAlignment - 1) / kAlignment * kAlignment + (bytes == 0 ? kAlignment : 0);
  if (rounded < bytes) return Status(StatusCode::kExhausted, message("an allocation of ", bytes, " bytes"));
  if (executor.backend == Backend::kCpu) {
    buffer.data_ = std::aligned_alloc(kAlignment, rounded);
    if (buffer.data_ == nullptr) {
      return Status(StatusCode::kExhausted, message("cannot allocate ", bytes, " bytes of memory"));
    }
    return buffer;
  }
#if FLASHLATENT_WITH_CUDA
  FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaSetDevice(executor.device), "cudaSetDevice"));
  if (cudaError_t error = cudaMalloc(&buffer.data_, rounded); error != cudaSuccess) {
    cudaGetLastError();
    return Status(StatusCode::kExhausted, message("cannot allocate ", bytes, " bytes on cuda:",
                                                  executor.device, ": ", cudaGetErrorString(error)));
  }
  return buffer;
#else
  return not_built();
#endif
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (backend_ == Backend::kCpu) std::free(data_);
#if FLASHLATENT_WITH_CUDA
  if (backend_ == Backend::kCuda) cudaFree(data_);
#endif
}

Status copy_to_device(void* device, const void* host, std::size_t bytes, const Executor& executor) {
  if (bytes == 0) return {};
  if (executor.backend == Backend::kCpu) {
    std::memcpy(device, host, bytes);
    return {};
  }
#if FLASHLATENT_WITH_CUDA
  FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(
      cudaMemcpyAsync(device, host, bytes, cudaMemcpyDefault, stream_of(executor)), "cudaMemcpyAsync"));
  return synchronize(executor);
#else
  return not_built();
#endif
}

Status copy_to_host(void* host, const void* device, std::size_t bytes, const Executor& executor) {
  // cudaMemcpyDefault: the addresses show the direction
  return copy_to_device(host, device, bytes, executor);
}

Status copy_on_device(void* to, const void* from, std::size_t bytes, const Executor& executor) {
  if (executor.backend == Backend::kCpu) {
    const auto pieces = static_cast<std::int64_t>((bytes + kPiece - 1) / kPiece);
    const int threads = executor.threads > 0 ? executor.threads : cpu::hardware_threads();
    cpu::parallel_for(pieces, threads, [&](std::int64_t i) {
      const std::size_t begin = i * kPiece;
      std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                  std::min(kPiece, bytes - begin));
    });
    return {};
  }
#if FLASHLATENT_WITH_CUDA
  return cuda::to_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(executor)),
                         "cudaMemcpyAsync");
#else
  return not_built();
#endif
}

Status fill(void* device, int value, std::size_t bytes, const Executor& executor) {
  if (executor.backend == Backend::kCpu) {
    std::memset(device, value, bytes);
    return {};
  }
#if FLASHLATENT_WITH_CUDA
  return cuda::to_status(cudaMemsetAsync(device, value, bytes, stream_of(executor)), "cudaMemsetAsync");
#else
  return not_built();
#endif
}

Status synchronize(const Executor& executor) {
  if (executor.backend == Backend::kCpu) return {};
#if FLASHLATENT_WITH_CUDA
  return cuda::to_status(cudaStreamSynchronize(stream_of(executor)), "cudaStreamSynchronize");
#else
  return not_built();
#endif
}

}  // namespace flashlatent::runtime
