#include "cuda/etap/instance.cuh"
#include "cuda/parts/fp8_staged_loader.cuh"

namespace flashlatent::etap {

constinit const Fp8Instances kInstancesFp8_656 = {
    {instance<__nv_bfloat16, 576, 512, 16, parts::Fp8StagedLoader>(Dtype::kBF16, cuda::Loading::kFp8)}};

}  // namespace flashlatent::etap
