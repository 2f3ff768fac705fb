#include "cuda/mla_64_pingpong/instance.cuh"
#include "cuda/parts/fp8_register_loader.cuh"
#include "cuda/parts/fp8_unit_loader.cuh"

namespace flashlatent::mla_64_pingpong {

constinit const Fp8Instances kInstancesFp8_656 =
    cuda::of_keys(kFp8Keys, Fp8Instances{{instance<__nv_bfloat16, 576, 512, 2, parts::Fp8UnitLoader>(
                                              Dtype::kBF16, cuda::Loading::kFp8),
                                          instance<__nv_bfloat16, 576, 512, 1, parts::Fp8RegisterLoader<1>>(
                                              Dtype::kBF16, cuda::Loading::kFp8)}});

}  // namespace flashlatent::mla_64_pingpong
