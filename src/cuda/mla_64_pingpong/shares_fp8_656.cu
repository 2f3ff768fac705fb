#include "cuda/mla_64_pingpong/instance.cuh"
#include "cuda/parts/fp8_register_loader.cuh"

namespace flashlatent::mla_64_pingpong {

constinit const Fp8ShareInstances kSharesFp8_656 = cuda::of_keys(
    kFp8ShareKeys,
    Fp8ShareInstances{{instance<__nv_bfloat16, 576, 512, 2, parts::Fp8RegisterLoader<2>, 1, true>(
        Dtype::kBF16, cuda::Loading::kFp8)}});

}  // namespace flashlatent::mla_64_pingpong
