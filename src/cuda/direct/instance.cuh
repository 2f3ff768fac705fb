// What a file of instances includes.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/direct/instances.h"
#include "cuda/direct/kernel.cuh"

namespace flashlatent::direct {

template <class Config>
Status launch_instance(const cuda::DenseLaunch& launch, const Executor& executor) {
  return cuda::launch_ctas<kernel<Config>, Config, SharedMemory<Config>>(
      launch.args.geometry.parts * launch.args.geometry.lanes * Config::kTeam, Config::kTeam, executor,
      launch.args);
}

template <int kTeam = 1, bool kMerges = false, int kRows = 16>
constexpr Instances instances() {
  using Config = Config<kTeam, kMerges, kRows>;
  return {{{{Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, Config::kRows, cuda::Loading::kFp8, 1, kTeam,
             kMerges},
            launch_instance<Config>}}};
}

}  // namespace flashlatent::direct
