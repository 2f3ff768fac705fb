// Typed kernel launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "cuda/host/runtime.h"
#include "flashlatent/backend.h"

namespace flashlatent::cuda {

struct LaunchShape {
  int blocks = 1;
  int threads = 1;
  std::size_t shared_bytes = 0;
  /// Programmatic dependent launch: the kernel itself waits for the previous launch.
  bool overlaps_previous = false;
};

inline constexpr std::int64_t kMostBlocks = (1LL << 31) - 1;
Status too_many_blocks(std::int64_t blocks);

/// Sets an attribute of a kernel, once for each device. A kernel always has the same value.
template <auto kKernel, cudaFuncAttribute kAttribute>
Status set_once(int value, int device) {
  static std::atomic<std::uint64_t> done{0};
  const std::uint64_t bit = device < 64 ? 1ULL << device : 0;
  if (done.load(std::memory_order_relaxed) & bit) return {};
  FLASHLATENT_RETURN_IF_ERROR(
      to_status(cudaFuncSetAttribute(reinterpret_cast<const void*>(kKernel), kAttribute, value),
                "cudaFuncSetAttribute"));
  done.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

/// Lets a kernel have more than 48 KB of shared memory.
template <auto kKernel>
Status allow_shared_memory(std::size_t bytes, int device) {
  return set_once<kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize>(static_cast<int>(bytes), device);
}

/// Asks for as much shared memory on a multiprocessor as there is, so that two CTAs fit.
template <auto kKernel>
Status prefer_shared_memory(int device) {
  return set_once<kKernel, cudaFuncAttributePreferredSharedMemoryCarveout>(cudaSharedmemCarveoutMaxShared,
                                                                           device);
}

template <class... Parameters, class... Arguments>
Status launch(void (*kernel)(Parameters...), LaunchShape shape, const Executor& executor,
              const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(executor.stream);
  cudaLaunchAttribute attribute = {};
  config.attrs = &attribute;
  if (shape.overlaps_previous) {
    config.numAttrs = 1;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  return to_status(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
                   "cudaLaunchKernelEx");
}

}  // namespace flashlatent::cuda
