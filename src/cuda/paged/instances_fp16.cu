#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const Instances kFp16 = cuda::of_keys(kFp16Keys, instances<__half>(CachedType::kF16));

}  // namespace flashlatent::paged
