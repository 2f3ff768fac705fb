// What a file of instances includes.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/quartet/instances.h"
#include "cuda/quartet/kernel.cuh"

namespace flashlatent::quartet {

template <class Config>
Status launch_instance(const cuda::DenseLaunch& launch, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(
      (cuda::allow_shared_memory<kernel<Config>>(sizeof(SharedMemory<Config>), executor.device)));
  cuda::LaunchShape shape;
  shape.blocks = launch.args.geometry.parts * launch.args.geometry.lanes;
  shape.threads = Config::kThreads;
  shape.shared_bytes = sizeof(SharedMemory<Config>);
  shape.overlaps_previous = true;
  return cuda::launch(kernel<Config>, shape, executor, launch.args);
}

template <bool kMerges>
constexpr Instances instances() {
  using Config = Config<kMerges>;
  return {{{{.dtype = Dtype::kBF16,
             .qk_dim = fp8_656::kDim,
             .v_dim = fp8_656::kLatentDim,
             .tile_rows = Config::kRows,
             .loading = cuda::Loading::kFp8,
             .merges = kMerges},
            launch_instance<Config>}}};
}

}  // namespace flashlatent::quartet
