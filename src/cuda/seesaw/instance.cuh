// What a file of instances includes.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/seesaw/instances.h"
#include "cuda/seesaw/kernel.cuh"

namespace flashlatent::seesaw {

template <class Config, class Loader>
Status launch_instance(const cuda::DenseLaunch& launch, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(
      (cuda::allow_shared_memory<kernel<Config, Loader>>(sizeof(SharedMemory<Config>), executor.device)));
  cuda::LaunchShape shape;
  shape.blocks = launch.args.geometry.parts * launch.args.geometry.lanes;
  shape.threads = Config::kThreads;
  shape.shared_bytes = sizeof(SharedMemory<Config>);
  return cuda::launch(kernel<Config, Loader>, shape, executor, launch.args, launch.kv, launch.query_rows);
}

template <int kQkDim, int kVDim>
constexpr ShapeInstances shape_instances() {
  using Bf16 = Config<__nv_bfloat16, kQkDim, kVDim>;
  using Fp16 = Config<__half, kQkDim, kVDim>;
  return {{{Dtype::kBF16, kQkDim, kVDim, 64, false, launch_instance<Bf16, parts::TmaLoader>},
           {Dtype::kBF16, kQkDim, kVDim, 64, true, launch_instance<Bf16, parts::TokenLoader>},
           {Dtype::kF16, kQkDim, kVDim, 64, false, launch_instance<Fp16, parts::TmaLoader>},
           {Dtype::kF16, kQkDim, kVDim, 64, true, launch_instance<Fp16, parts::TokenLoader>}}};
}

}  // namespace flashlatent::seesaw
