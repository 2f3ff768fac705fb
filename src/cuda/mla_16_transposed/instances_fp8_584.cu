#include "cuda/mla_16_transposed/instance.cuh"
#include "cuda/parts/listed_bulk_loader.cuh"

namespace flashlatent::mla_16_transposed {

constinit const Fp8Instances kInstancesFp8_584 = cuda::of_keys(
    kFp8_584Keys,
    Fp8Instances{
        {instance<__nv_bfloat16, 512, 512, kTileRows, parts::ListedBulkLoader<parts::Fp8_584Rows, 2>>(
            Dtype::kBF16, cuda::Loading::kFp8_584)}});

}  // namespace flashlatent::mla_16_transposed
