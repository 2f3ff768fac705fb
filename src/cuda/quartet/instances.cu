#include "cuda/quartet/instances.h"
#include "cuda/quartet/kernel.cuh"

namespace flashlatent::quartet {

constinit const Instances kInstances = cuda::of_keys(
    kKeys, Instances{{{.key = {.dtype = Dtype::kBF16,
                               .qk_dim = fp8_656::kDim,
                               .v_dim = fp8_656::kLatentDim,
                               .tile_rows = Config::kRows,
                               .loading = cuda::Loading::kFp8},
                       .kernel = cuda::compiled_kernel<kernel<Config>, Config, SharedMemory<Config>>(),
                       .boxes = {.query = cuda::query_chunks_map},
                       .merges = true}}});

}  // namespace flashlatent::quartet
