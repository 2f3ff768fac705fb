#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const WideInstances kBf16x256 = wide_instances<__nv_bfloat16, 256>(Dtype::kBF16);

}  // namespace flashlatent::paged
