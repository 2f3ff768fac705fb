#include "cuda/host/launch_ctas.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <mutex>
#include <set>
#include <tuple>

#include "core/message.h"
#include "cuda/host/launch.h"

namespace flashlatent::cuda {

namespace {

constexpr int kMostPortable = 8;  // CTAs of a cluster without an attribute
constexpr std::size_t kMostParameters = 4;

/// Sets a kernel's attributes for its shared memory and for large clusters, once for each device.
Status allow(const void* function, std::size_t shared_bytes, int cluster, int device) {
  static std::mutex mutex;
  static std::set<std::tuple<const void*, int, bool>> allowed;
  const std::lock_guard lock(mutex);
  const bool is_large = cluster > kMostPortable;
  if (allowed.contains({function, device, is_large})) return {};
  const auto set = [&](cudaFuncAttribute attribute, int value) {
    return to_status(cudaFuncSetAttribute(function, attribute, value), "cudaFuncSetAttribute");
  };
  FLASHLATENT_RETURN_IF_ERROR(
      set(cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  if (is_large) {
    FLASHLATENT_RETURN_IF_ERROR(set(cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  allowed.insert({function, device, is_large});
  return {};
}

}  // namespace

Status too_many_blocks(std::int64_t blocks) {
  return unsupported("the call has work for ", blocks, " thread blocks; calls of up to ", kMostBlocks,
                     " are accepted: fewer tokens or pages");
}

Status launch_ctas(const CompiledKernel& kernel, int ctas, int cluster, const Executor& executor,
                   std::initializer_list<const void*> parameters) {
  const void* function = kernel.function();
  FLASHLATENT_RETURN_IF_ERROR(allow(function, kernel.shared_bytes, cluster, executor.device));
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(kernel.threads);
  config.dynamicSmemBytes = kernel.shared_bytes;
  config.stream = static_cast<cudaStream_t>(executor.stream);
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  void* pointers[kMostParameters];
  assert(parameters.size() <= kMostParameters);
  std::transform(parameters.begin(), parameters.end(), std::begin(pointers),
                 [](const void* p) { return const_cast<void*>(p); });
  return to_status(cudaLaunchKernelExC(&config, function, pointers), "cudaLaunchKernelExC");
}

}  // namespace flashlatent::cuda
