#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const Instances kBf16 = cuda::of_keys(kBf16Keys, instances<__nv_bfloat16>(CachedType::kBF16));

}  // namespace flashlatent::paged
