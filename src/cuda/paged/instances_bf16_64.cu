#include "cuda/paged/instance.cuh"

namespace flashlatent::paged {

constinit const DimInstances kBf16x64 = dim_instances<__nv_bfloat16, 64>(Dtype::kBF16);

}  // namespace flashlatent::paged
