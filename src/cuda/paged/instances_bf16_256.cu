#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const DimInstances kBf16x256 = dim_instances<__nv_bfloat16, 256>(Dtype::kBF16);

}  // namespace flashlatent::paged
