#include "cuda/parts/fp8_register_loader.cuh"
#include "cuda/parts/fp8_unit_loader.cuh"
#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

constinit const Fp8Instances kMergingFp8_656 = {
    {merging_instance<__nv_bfloat16, 2, parts::Fp8UnitLoader>(Dtype::kBF16, cuda::Loading::kFp8),
     merging_instance<__nv_bfloat16, 1, parts::Fp8RegisterLoader<1>>(Dtype::kBF16, cuda::Loading::kFp8)}};

}  // namespace flashlatent::seesaw
