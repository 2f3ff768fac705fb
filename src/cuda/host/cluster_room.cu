#include "cuda/host/cluster_room.h"

#include <cuda_runtime.h>

#include "cuda/host/runtime.h"

namespace flashlatent::cuda {

namespace {

/// Does nothing, and is never launched: its CTAs fill a multiprocessor, so that none holds two.
__global__ void alone_on_its_multiprocessor() {}

constexpr int kSharedBytes = 200 * 1024;

}  // namespace

schedule::ClusterRoom cluster_room(int device) {
  const auto* kernel = reinterpret_cast<const void*>(&alone_on_its_multiprocessor);
  const DeviceGuard current(device);
  const bool allowed =
      current.status().ok() &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes) ==
          cudaSuccess &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess;
  std::array<std::int16_t, schedule::ClusterRoom::kMostCtas> counts = {};
  for (int ctas = 1; allowed && ctas <= schedule::ClusterRoom::kMostCtas; ++ctas) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(ctas), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(ctas);
    config.blockDim = dim3(128);
    config.dynamicSmemBytes = kSharedBytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    // An error says that there is no such cluster on this device.
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) clusters = 0;
    counts[ctas - 1] = static_cast<std::int16_t>(clusters);
  }
  cudaGetLastError();
  return counts[0] > 0 ? schedule::ClusterRoom(counts) : schedule::ClusterRoom();
}

}  // namespace flashlatent::cuda
