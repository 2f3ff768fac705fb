#include "cuda/mla_16_transposed/instance.cuh"
#include "cuda/parts/listed_bulk_loader.cuh"

namespace flashlatent::mla_16_transposed {

constinit const Fp8Instances kInstancesListed = cuda::of_keys(
    kListedKeys,
    Fp8Instances{
        {instance<__nv_bfloat16, 576, 512, kTileRows, parts::ListedBulkLoader<parts::Fp8_656Rows, 1>>(
            Dtype::kBF16, cuda::Loading::kListedFp8)}});

}  // namespace flashlatent::mla_16_transposed
