#include "cuda/sm90/kernels/gqa_128/instance.cuh"

namespace flashlatent::gqa_128 {

constinit const E4m3Instances kBf16E4m3 =
    cuda::of_keys(kBf16E4m3Keys, e4m3_instances<__nv_bfloat16>(Dtype::kBF16));
constinit const E4m3Instances kFp16E4m3 = cuda::of_keys(kFp16E4m3Keys, e4m3_instances<__half>(Dtype::kF16));

}  // namespace flashlatent::gqa_128
