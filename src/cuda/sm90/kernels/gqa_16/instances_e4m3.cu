#include "cuda/sm90/kernels/gqa_16/instance.cuh"

namespace flashlatent::gqa_16 {

constinit const Instances kE4m3 = cuda::of_keys(kE4m3Keys, instances<E4m3>(CachedType::kE4m3));

}  // namespace flashlatent::gqa_16
