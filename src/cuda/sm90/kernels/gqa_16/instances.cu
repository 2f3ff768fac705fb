#include "cuda/sm90/kernels/gqa_16/instance.cuh"

namespace flashlatent::gqa_16 {

constinit const Instances kBf16 = cuda::of_keys(kBf16Keys, instances<__nv_bfloat16>(CachedType::kBF16));
constinit const Instances kFp16 = cuda::of_keys(kFp16Keys, instances<__half>(CachedType::kF16));

}  // namespace flashlatent::gqa_16
