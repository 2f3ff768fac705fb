#include "cuda/mla_64_pingpong/instance.cuh"
#include "cuda/parts/listed_staged_loader.cuh"

namespace flashlatent::mla_64_pingpong {

constinit const Fp8Instances kInstancesFp8_584 = cuda::of_keys(
    kFp8_584Keys,
    Fp8Instances{{instance<__nv_bfloat16, 512, 512, 2, parts::ListedStagedLoader<parts::Fp8_584Rows, 2, 8>>(
                      Dtype::kBF16, cuda::Loading::kFp8_584),
                  instance<__nv_bfloat16, 512, 512, 1, parts::ListedStagedLoader<parts::Fp8_584Rows, 1, 5>>(
                      Dtype::kBF16, cuda::Loading::kFp8_584)}});

}  // namespace flashlatent::mla_64_pingpong
