#include "cuda/common/launch.h"
#include "cuda/quartet/instances.h"
#include "cuda/quartet/kernel.cuh"

namespace flashlatent::quartet {

namespace {

Status launch_instance(const cuda::DenseLaunch& launch, const Executor& executor) {
  return cuda::launch_ctas<kernel<Config>, Config, SharedMemory<Config>>(
      launch.args.geometry.parts * launch.args.geometry.lanes, 1, executor, launch.args, launch.query_rows);
}

/// One kernel: it asks when it runs whether it is to do the combine step.
constexpr cuda::DenseInstance instance(bool merges) {
  return {.key = {.dtype = Dtype::kBF16,
                  .qk_dim = fp8_656::kDim,
                  .v_dim = fp8_656::kLatentDim,
                  .tile_rows = Config::kRows,
                  .loading = cuda::Loading::kFp8,
                  .merges = merges},
          .launch = launch_instance,
          .boxes = {.query = cuda::query_chunks_map}};
}

}  // namespace

constinit const Instances kInstances = {{instance(false), instance(true)}};

}  // namespace flashlatent::quartet
