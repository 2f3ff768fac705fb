#include "cuda/quartet/instances.h"
#include "cuda/quartet/kernel.cuh"

namespace flashlatent::quartet {

namespace {

/// One kernel: it asks when it runs whether it is to do the combine step.
constexpr cuda::DenseInstance instance(bool merges) {
  return {.key = {.dtype = Dtype::kBF16,
                  .qk_dim = fp8_656::kDim,
                  .v_dim = fp8_656::kLatentDim,
                  .tile_rows = Config::kRows,
                  .loading = cuda::Loading::kFp8,
                  .merges = merges},
          .kernel = cuda::compiled_kernel<kernel<Config>, Config, SharedMemory<Config>>(),
          .boxes = {.query = cuda::query_chunks_map}};
}

}  // namespace

constinit const Instances kInstances = {{instance(false), instance(true)}};

}  // namespace flashlatent::quartet
