#include "cuda/mla_16_transposed/instance.cuh"
#include "cuda/parts/fp8_staged_loader.cuh"

namespace flashlatent::mla_16_transposed {

constinit const Fp8Instances kInstancesFp8_656 = cuda::of_keys(
    kFp8Keys, Fp8Instances{{instance<__nv_bfloat16, 576, 512, kTileRows, parts::Fp8StagedLoader>(
                  Dtype::kBF16, cuda::Loading::kFp8)}});

}  // namespace flashlatent::mla_16_transposed
