#include "cuda/gqa_16/instance.cuh"

namespace flashlatent::gqa_16 {

constinit const Instances kFp16 = cuda::of_keys(kFp16Keys, instances<__half>(CachedType::kF16));

}  // namespace flashlatent::gqa_16
