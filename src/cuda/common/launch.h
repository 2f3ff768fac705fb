// Typed kernel launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "cuda/common/runtime.h"
#include "flashlatent/backend.h"

namespace flashlatent::cuda {

struct LaunchShape {
  int blocks = 1;
  int threads = 1;
  std::size_t shared_bytes = 0;
  int cluster = 1;                 ///< CTAs a cluster.
  bool overlaps_previous = false;  ///< Programmatic dependent launch: the kernel waits on the device itself.
};

/// Sets a kernel's attribute to what is always the same value, once a device.
template <auto kKernel, cudaFuncAttribute kAttribute>
Status allow(int value, int device) {
  static std::atomic<std::uint64_t> done{0};
  const std::uint64_t bit = device < 64 ? 1ULL << device : 0;
  if (done.load(std::memory_order_relaxed) & bit) return {};
  FLASHLATENT_RETURN_IF_ERROR(
      to_status(cudaFuncSetAttribute(reinterpret_cast<const void*>(kKernel), kAttribute, value),
                "cudaFuncSetAttribute"));
  done.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

/// Allows a kernel more than 48 KB of shared memory.
template <auto kKernel>
Status allow_shared_memory(std::size_t bytes, int device) {
  return allow<kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize>(static_cast<int>(bytes), device);
}

/// Allows a kernel clusters of more than 8 CTAs.
template <auto kKernel>
Status allow_large_clusters(int device) {
  return allow<kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed>(1, device);
}

template <class... Parameters, class... Arguments>
Status launch(void (*kernel)(Parameters...), LaunchShape shape, const Executor& executor,
              const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(executor.stream);
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (shape.overlaps_previous) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  return to_status(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
                   "cudaLaunchKernelEx");
}

/// CTAs of Config::kThreads threads with a Shared in shared memory, `cluster` of them a cluster, that wait
/// for the launch before them on the device.
template <auto kKernel, class Config, class Shared, class... Arguments>
Status launch_ctas(int ctas, int cluster, const Executor& executor, const Arguments&... arguments) {
  FLASHLATENT_RETURN_IF_ERROR(allow_shared_memory<kKernel>(sizeof(Shared), executor.device));
  constexpr int kMostPortable = 8;
  if (cluster > kMostPortable) FLASHLATENT_RETURN_IF_ERROR(allow_large_clusters<kKernel>(executor.device));
  const LaunchShape shape = {.blocks = ctas,
                             .threads = Config::kThreads,
                             .shared_bytes = sizeof(Shared),
                             .cluster = cluster,
                             .overlaps_previous = true};
  return launch(kKernel, shape, executor, arguments...);
}

}  // namespace flashlatent::cuda
